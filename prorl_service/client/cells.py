"""Which of several fronts has what: rankings of fronts, remembered places, equal shares.

A *cell* is a front with services and engines of its own. Each key, such as a group's id, ranks the
fronts by hashes (rendezvous hashing): the first has it. Without one front, only its own keys move,
each to the next in its own ranking. Makes no requests.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from threading import Lock

from prorl_service.errors import ProRLError
from prorl_service.schemas import Group
from prorl_service.schemas.sampling import DrawSpec, SamplerSpec

URLS = r"^https?://[^/\s,]+/?(\s*,\s*https?://[^/\s,]+/?)*$"
"""Pattern of one address, or of several with commas between them."""
AVOID_S = 60.0
"""Seconds for which new groups avoid a front to which it took long to make no connection."""
MAX_REMEMBERED = 200_000
"""Places that a process remembers; it forgets the oldest ones first."""


def fronts_in(urls: str) -> list[str]:
    """Returns the fronts that an address with commas names; a single one as it is. Raises
    `ProRLError` for a front that is named twice."""
    if "," not in urls:
        return [urls]
    fronts = [url.strip().rstrip("/") for url in urls.split(",")]
    if "" in fronts:
        hint = "write it as 'http://a:8080,http://b:8080'"
        raise ProRLError(f"{urls!r} has an empty address of a front", hint=hint)
    if len(set(fronts)) < len(fronts):
        raise ProRLError(f"{urls!r} names a front twice", hint="name each front once")
    return fronts


def ranking(fronts: Iterable[str], key: str) -> list[str]:
    """Returns the fronts in the order in which they may have `key`, whatever order they are in."""
    return sorted(fronts, key=lambda front: (_weight(front, key), front), reverse=True)


def _weight(front: str, key: str) -> bytes:
    return blake2b(f"{front}\n{key}".encode(), digest_size=8).digest()


def group_id_of(rollout_id: str) -> str:
    return rollout_id.rpartition(".")[0] or rollout_id


def engine_key(engine: str) -> str:
    """Returns the same key for an engine's URL and for its `backend_id`."""
    return engine.rpartition("://")[2].rstrip("/")


def candidate_key(sampler_id: str, name: str) -> str:
    """Returns the key of a candidate, which differs from those of all groups."""
    return f"{sampler_id}/{name}"


# --- places -------------------------------------------------------------------------------------


class Places:
    """Where things are, as far as this process knows, in whichever client it learned that."""

    def __init__(self, fronts: Iterable[str]) -> None:
        self.fronts = list(fronts)
        self._places: dict[str, str] = {}
        self._avoided: dict[str, float] = {}
        """Monotonic times until which new groups avoid a front."""
        self._lock = Lock()

    def remember(self, keys: Iterable[str], front: str) -> None:
        with self._lock:
            for key in keys:
                self._places[key] = front
            while len(self._places) > MAX_REMEMBERED:
                del self._places[next(iter(self._places))]

    def forget(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._places.pop(key, None)

    def find(self, key: str) -> str | None:
        return self._places.get(key)

    def avoid(self, front: str) -> None:
        self._avoided[front] = time.monotonic() + AVOID_S

    def choose(self, key: str, refused: Iterable[str] = ()) -> str | None:
        """Returns the front for something new: the first in its ranking that has not refused it.
        None if all have."""
        left = [one for one in ranking(self.fronts, key) if one not in set(refused)]
        now = time.monotonic()
        reachable = [one for one in left if self._avoided.get(one, now) <= now]
        return next(iter([*reachable, *left]), None)

    def divide(self, keys: Iterable[str]) -> tuple[dict[str, list[str]], list[str]]:
        """Returns the keys at each front, and those whose places are unknown."""
        parts: defaultdict[str, list[str]] = defaultdict(list)
        unknown: list[str] = []
        for key in keys:
            front = self.find(key)
            (unknown if front is None else parts[front]).append(key)
        return dict(parts), unknown


_shared: dict[frozenset[str], Places] = {}


def places_of(fronts: Iterable[str]) -> Places:
    """Returns the places that all clients of these fronts share in this process: trainers make a
    client for each conversation."""
    fronts = list(fronts)
    return _shared.setdefault(frozenset(fronts), Places(fronts))


# --- shares -------------------------------------------------------------------------------------


def shares(total: int, receivers: Sequence[str]) -> dict[str, int]:
    """Returns equal shares that add up to `total`; the first receivers get the remainder."""
    share, remainder = divmod(total, len(receivers))
    return {one: share + (number < remainder) for number, one in enumerate(receivers)}


def draw_shares(fronts: Sequence[str], draw_id: str, spec: DrawSpec) -> dict[str, DrawSpec]:
    """Returns each front's part of a draw; fronts for which nothing is left have none."""
    most = min(spec.target, len(fronts), spec.max_groups or spec.target)
    receivers = ranking(fronts, draw_id)[:most]
    targets = shares(spec.target, receivers)
    limits = shares(spec.max_groups, receivers) if spec.max_groups else {}
    return {
        one: spec.model_copy(update={"target": targets[one], "max_groups": limits.get(one)})
        for one in receivers
    }


def sampler_share(spec: SamplerSpec, count: int) -> SamplerSpec:
    """Returns the spec for one of `count` fronts: limits of groups are divided, rounded up."""
    divided = {
        "groups_at_once": spec.groups_at_once and -(-spec.groups_at_once // count),
        "groups_ahead": -(-spec.groups_ahead // count),
    }
    return spec.model_copy(update=divided)


def allot(
    places: Places, sampler_id: str, groups: Iterable[Group], wanted: Mapping[str, int]
) -> dict[str, list[Group]]:
    """Returns the candidates for each front: those fed before go where they went, others to the
    first in their ranking that still wants some."""
    left = dict(wanted)
    parts: dict[str, list[Group]] = {front: [] for front in places.fronts}
    for group in groups:
        key = candidate_key(sampler_id, group.group_id)
        order = ranking(places.fronts, key)
        wanting = [one for one in order if left.get(one, 0) > 0]
        front = places.find(key) or next(iter(wanting or order))
        left[front] = left.get(front, 0) - 1
        parts[front].append(group)
    return parts
