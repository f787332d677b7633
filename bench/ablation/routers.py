"""The routing policies of others, and ours without what it knows of sessions.

All but `NotSticky` keep a session on its engine, and ignore work and speed. If the engine is gone,
each chooses again by its own rule.
"""

import hashlib
import random
from abc import ABC, abstractmethod
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from prorl_service.inference.routing import EngineLoad, LeastExpectedTime, RouteRequest

RING_POINTS = 64
SEED = 0


class _Sticky(ABC):
    def choose(self, call: RouteRequest, loads: Mapping[str, EngineLoad]) -> str | None:
        chosen = call.pinned if call.pinned in loads else self._first(call, sorted(loads))
        return chosen if chosen is not None and loads[chosen].has_room else None

    @abstractmethod
    def _first(self, call: RouteRequest, names: list[str]) -> str | None: ...


class _Assigning(_Sticky):
    """A policy that assigns a new session at once: one that waits for room keeps its engine."""

    def __init__(self, choose: Callable[[Sequence[str]], str]) -> None:
        self._choose = choose
        self._of: dict[str, str] = {}

    def _first(self, call: RouteRequest, names: list[str]) -> str | None:
        if self._of.get(call.session) not in names and names:
            self._of[call.session] = self._choose(names)
        return self._of.get(call.session) if names else None


class MinHeap(_Assigning):
    """ProRL Agent's policy: fewest tasks assigned so far, ever."""

    def __init__(self) -> None:
        super().__init__(self._fewest)
        self._assigned: Counter[str] = Counter()

    def _fewest(self, names: Sequence[str]) -> str:
        chosen = min(names, key=lambda one: (self._assigned[one], one))
        self._assigned[chosen] += 1
        return chosen


class Random(_Assigning):
    def __init__(self) -> None:
        super().__init__(random.Random(SEED).choice)


class ConsistentHash(_Sticky):
    """A ring of hashes, as in vLLM's routers for a session header."""

    def _first(self, call: RouteRequest, names: list[str]) -> str | None:
        if not names:
            return None
        ring = sorted((_hash(f"{name}#{i}"), name) for name in names for i in range(RING_POINTS))
        return ring[bisect(ring, (_hash(call.session), "")) % len(ring)][1]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


class NotSticky:
    """The service's own router, to which every call is the first of its session."""

    def __init__(self) -> None:
        self._router = LeastExpectedTime()

    def choose(self, call: RouteRequest, loads: Mapping[str, EngineLoad]) -> str | None:
        return self._router.choose(replace(call, pinned=None), loads)
