"""Choice of the engine for a rollout's next call: by expected time, from numbers alone.

A rollout stays where its prefix is cached, unless that engine has become much slower than another.
A new one goes where its call should take the least time: its own work and a share of the work
already there (calls in flight, and one to come of each session between calls), times the engine's
seconds per token. A prompt is work only where it is not cached, so rollouts that begin together are
spread, too. Rendezvous hashing breaks ties: it spreads siblings evenly without state. Knows nothing
of engines, networks and clocks.

Counting tasks, as a min-heap of assignments does, is blind to all of this: it gives a slow engine
as much as a fast one, and every new task to an engine that was added late.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

PREFILL_WEIGHT = 0.1
"""Work of a prompt token that is not cached, in sampled tokens: prefill is parallel."""
PARALLEL = 32.0
"""Divisor of the work already at an engine: calls in a batch slow each other down only a little."""
SAME_SPEED = 1.5
"""Ratio by which the measured speeds of equal engines may differ."""
SHORT_CALL_S = 0.05
"""Seconds that any call counts for at least: a shorter one measures the network, not the engine."""
SMOOTHING = 0.1
"""Weight of the newest call in the moving average of an engine's speed."""
FIRST_CALLS = 4
"""Calls that a newcomer among proven engines gets at first, and one more for each that ends."""
PROVEN_CALLS = 32
MOVE_FACTOR = 4.0
"""Ratio of speeds beyond which a session moves to another engine."""
FORGETTING = 1 / 256
"""Share of its slowness that an idle engine is forgiven per decision, so that it is tried again."""
MAX_EXPECTED_TOKENS = 512
"""Most tokens expected of one call: agents' turns end long before their limit."""


@dataclass(slots=True)
class EngineLoad:
    """Load of one engine: its calls, and how fast it answers them."""

    max_calls: int
    calls: int = 0
    work: float = 0.0
    """Work of the calls in flight, in sampled tokens."""
    sessions: int = 0
    """Sessions pinned to the engine."""
    completed: int = 0
    seconds: float = 0.0
    """Seconds per call, averaged with the newest counting most; 0 before the first, like
    `work_done`."""
    work_done: float = 0.0

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds per sampled token. Not the mean over calls, in which the shortest would count
        most."""
        return self.seconds / self.work_done if self.work_done else None

    @property
    def has_room(self) -> bool:
        return self.calls < self.max_calls

    def begin(self, work: float) -> None:
        self.calls += 1
        self.work += work

    def end(self, work: float) -> None:
        self.calls -= 1
        self.work -= work

    def learn(self, *, sampled: int, uncached: int, took_s: float) -> None:
        """Learns from a call that succeeded."""
        self.completed += 1
        work = max(1.0, sampled + PREFILL_WEIGHT * uncached)
        self.seconds += SMOOTHING * (max(took_s, SHORT_CALL_S) - self.seconds)
        self.work_done += SMOOTHING * (work - self.work_done)

    def forgive(self, fastest: float) -> None:
        self.seconds -= FORGETTING * (self.seconds - fastest * self.work_done)


@dataclass(frozen=True, slots=True)
class RouteRequest:
    session: str
    pinned: str | None
    """Engine of the session's last call."""
    prompt_tokens: int
    max_tokens: int

    @property
    def context(self) -> int:
        """Tokens that the engine must have room for."""
        return self.prompt_tokens + self.max_tokens

    @property
    def expected_tokens(self) -> int:
        return min(self.max_tokens, MAX_EXPECTED_TOKENS)

    def work_at(self, backend_id: str) -> float:
        """Returns the work of the call there, in sampled tokens."""
        uncached = 0 if backend_id == self.pinned else self.prompt_tokens
        return PREFILL_WEIGHT * uncached + self.expected_tokens


class Router(Protocol):
    def choose(self, call: RouteRequest, loads: Mapping[str, EngineLoad]) -> str | None:
        """Returns one of `loads`, the engines that can serve; None to wait until they change."""


@dataclass(slots=True)
class LeastExpectedTime:
    """The router that the service uses."""

    moves: int = 0
    """Sessions that left an engine which could still serve."""

    def choose(self, call: RouteRequest, loads: Mapping[str, EngineLoad]) -> str | None:
        known = [one.seconds_per_token for one in loads.values() if one.seconds_per_token]
        fastest = min(known, default=1.0)
        for load in loads.values():
            if not load.calls:
                load.forgive(fastest)
        pinned = loads.get(call.pinned) if call.pinned else None
        if pinned is not None and not _is_slow(pinned, fastest):
            return call.pinned if pinned.has_room else None
        most_calls = max((load.completed for load in loads.values()), default=0)
        free = [one for one in loads if _may_take(loads[one], most_calls)]
        if not free:
            return None
        best = min(
            free,
            key=lambda one: (
                _expected_s(call, one, loads[one], fastest),
                rendezvous(call.session, one),
            ),
        )
        self.moves += pinned is not None and best != call.pinned
        return best


def _is_slow(load: EngineLoad, fastest: float) -> bool:
    return load.seconds_per_token is not None and load.seconds_per_token > MOVE_FACTOR * fastest


def _may_take(load: EngineLoad, most_calls: int) -> bool:
    is_newcomer = load.completed < PROVEN_CALLS <= most_calls
    return load.has_room and not (is_newcomer and load.calls >= FIRST_CALLS + load.completed)


def _expected_s(call: RouteRequest, backend_id: str, load: EngineLoad, fastest: float) -> float:
    """Returns the expected seconds of the call; an engine without calls yet counts as fast."""
    seconds = load.seconds_per_token
    if seconds is None or seconds < SAME_SPEED * fastest:
        seconds = fastest
    to_come = (load.sessions - load.calls) * call.expected_tokens
    return seconds * (call.work_at(backend_id) + (load.work + to_come) / PARALLEL)


def rendezvous(session: str, backend_id: str) -> bytes:
    return hashlib.blake2b(f"{session}\0{backend_id}".encode(), digest_size=8).digest()
