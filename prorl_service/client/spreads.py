"""How a request is spread over several fronts, as data; `fronts` does it. One front needs none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prorl_service.schemas import BackendSpec, Group, Invalid
from prorl_service.schemas.sampling import DrawSpec, SamplerSpec


@dataclass(frozen=True, slots=True)
class Everywhere:
    """All fronts are asked. `join` makes one answer of theirs, which are keyed by front. `each` is
    asked instead of the request itself."""

    join: Callable[[Any], Any]
    each: Any = None


@dataclass(frozen=True, slots=True)
class AtOne:
    """The front that has the group is asked: the first in its ranking that does not answer 404."""

    group_id: str


@dataclass(frozen=True, slots=True)
class AtEngine:
    """The front that has the engine with this key is asked. `is_new`: the first in the ranking gets
    it."""

    key: str
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class ByGroup:
    """Each front is asked for what belongs to its groups.

    `key` returns the group of one of `ids`; `part` makes the request for some ids; `join` makes one
    answer of a list of answers and all ids. `forgets`: groups are forgotten, known or not.
    """

    ids: Sequence[str]
    key: Callable[[str], str]
    part: Callable[[Sequence[str]], Any]
    join: Callable[[Any, Sequence[str]], Any]
    forgets: bool = False


@dataclass(frozen=True, slots=True)
class Submission:
    groups: Sequence[Group]
    invalid: Invalid


@dataclass(frozen=True, slots=True)
class ByEngine:
    owner: str
    backends: Sequence[BackendSpec]


# --- samplers, of which each front has a part -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class SamplerCreation:
    sampler_id: str
    spec: SamplerSpec


@dataclass(frozen=True, slots=True)
class Polling:
    sampler_id: str
    after: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Feeding:
    sampler_id: str
    groups: Sequence[Group]
    is_last: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    sampler_id: str
    draw_id: str
    spec: DrawSpec


@dataclass(frozen=True, slots=True)
class SamplerDeletion:
    sampler_id: str


SamplerSpread = SamplerCreation | Polling | Feeding | Drawing | SamplerDeletion
Spread = Everywhere | AtOne | AtEngine | ByGroup | ByEngine | Submission | SamplerSpread
