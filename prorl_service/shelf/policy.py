"""Which groups the shelf keeps whole, and how much it keeps. Pure but for its counts.

A group is decided on as one, so that siblings stay together and can be compared: by its id alone
where it is in the sample, else as soon as one of its rollouts says why.
"""

import hashlib
from collections import Counter
from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt
from pydantic.dataclasses import dataclass

from prorl_service.schemas.views import KeptFor

FAILED_ALIKE = 64
"""Failed groups of one policy version that are kept for the same kind of error: an outage must not
take the room of all else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfOptions:
    shelf_mb: NonNegativeFloat = 512
    """Maximum size of the shelf, which keeps ended rollouts for people, in MiB; 0: no shelf."""
    shelf_hours: NonNegativeFloat = 168
    """Hours of the service's uptime for which the shelf keeps them at most."""
    shelf_first: NonNegativeInt = 4
    """First groups of each policy version that the shelf keeps whole."""
    shelf_sample: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of other groups that the shelf keeps whole, chosen by their ids. Failed ones are kept
    in any case."""

    @property
    def bytes(self) -> int:
        return round(self.shelf_mb * 2**20)

    @property
    def seconds(self) -> float:
        return self.shelf_hours * 3600


class Policy:
    def __init__(self, options: ShelfOptions) -> None:
        self._first = options.shelf_first
        self._share = options.shelf_sample
        self._firsts = Counter[int]()
        """Groups kept as the first of their version, by version."""
        self._failures = Counter[tuple[int, str]]()
        """Groups kept for a failure, by version and kind of the error."""

    def count_first(self, version: int, count: int = 1) -> None:
        """`count` groups of it were kept before."""
        self._firsts[version] += count

    def decide(self, group_id: str, version: int, failure: str | None) -> KeptFor | None:
        """To be asked once for each ended rollout of a group that is not kept yet. `failure`: the
        kind of its error, if it failed."""
        if is_sampled(group_id, self._share):
            return KeptFor.SAMPLE
        if failure is not None and self._failures[version, failure] < FAILED_ALIKE:
            self._failures[version, failure] += 1
            return KeptFor.FAILED
        if self._firsts[version] < self._first:
            self._firsts[version] += 1
            return KeptFor.FIRST
        return None


def is_sampled(group_id: str, share: float) -> bool:
    """The same in every service: a front and those behind it keep the same groups."""
    digest = hashlib.sha256(group_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
