"""The policies of others, as routers: all are sticky, and ignore work and speed.

If a session's engine is gone, each chooses again by its own rule.
"""

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count

from prorl_service.inference.routing import EngineLoad, LeastExpectedTime, Router, RouteRequest

RING_POINTS = 64


class _Sticky(ABC):
    def choose(self, call: RouteRequest, loads: Mapping[str, EngineLoad]) -> str | None:
        chosen = call.pinned if call.pinned in loads else self._first(call, sorted(loads))
        return chosen if chosen is not None and loads[chosen].has_room else None

    @abstractmethod
    def _first(self, call: RouteRequest, names: list[str]) -> str | None: ...


class MinHeap(_Sticky):
    """ProRL Agent's policy: fewest tasks assigned so far, ever. A waiting task keeps its engine."""

    def __init__(self) -> None:
        self._assigned: Counter[str] = Counter()
        self._of: dict[str, str] = {}

    def _first(self, call: RouteRequest, names: list[str]) -> str | None:
        chosen = self._of.get(call.session)
        if chosen not in names and names:
            chosen = min(names, key=lambda one: (self._assigned[one], one))
            self._assigned[chosen] += 1
            self._of[call.session] = chosen
        return chosen if chosen in names else None


class RoundRobin(_Sticky):
    def __init__(self) -> None:
        self._turns = count()
        self._of: dict[str, str] = {}

    def _first(self, call: RouteRequest, names: list[str]) -> str | None:
        if self._of.get(call.session) not in names and names:
            self._of[call.session] = names[next(self._turns) % len(names)]
        return self._of.get(call.session) if names else None


class ConsistentHash(_Sticky):
    """A ring of hashes, as in vLLM's routers for a session header."""

    def _first(self, call: RouteRequest, names: list[str]) -> str | None:
        if not names:
            return None
        ring = sorted((_hash(f"{name}#{i}"), name) for name in names for i in range(RING_POINTS))
        return ring[bisect(ring, (_hash(call.session), "")) % len(ring)][1]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


OURS = "ours"
MIN_HEAP = "min-heap of task counts"
POLICIES: dict[str, Callable[[], Router]] = {
    OURS: LeastExpectedTime,
    MIN_HEAP: MinHeap,
    "consistent hash": ConsistentHash,
    "round robin": RoundRobin,
}
