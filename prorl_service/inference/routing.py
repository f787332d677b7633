"""Which engine a rollout's next call goes to: a decision by expected time, on numbers alone.

A rollout stays where its prefix is cached, unless that engine has become much slower than another.
A new one goes where its call will take least: its own work and a share of what is there already
(calls in flight, and one to come of each session that waits), times how long that engine takes for
a token. A prompt is work only where it is not cached, so what begins at once is spread, too. Ties
are broken by rendezvous hashing, which spreads siblings evenly without a state. Knows no engine, no
network and no clock; the same code is run by the pool and by the simulator in `bench/routing`.

Counting tasks, as a min-heap of assignments does, is blind to all of this: it gives as much to a
slow engine as to a fast one, and every new task to one that was added late.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

PREFILL_WEIGHT = 0.1
"""Work of a prompt token that is not cached, in sampled tokens: prompts go in parallel."""
PARALLEL = 32.0
"""Calls in a batch slow each other down by so little: one is ahead of the next by a part of it."""
SAME_SPEED = 1.5
"""What is measured of equal engines differs by so much."""
SHORT_CALL_S = 0.05
"""What takes less says more of the way to the engine than of the engine."""
SMOOTHING = 0.1
"""Share of the newest call in what is known of an engine's speed."""
FIRST_CALLS = 4
"""A newcomer among proven engines gets so many at once, and one more for each that ends."""
PROVEN_CALLS = 32
MOVE_FACTOR = 4.0
"""A session moves when another engine is so many times faster."""
FORGETTING = 1 / 256
"""Share of its slowness that an idle engine is forgiven with each decision, to be tried again."""
MAX_EXPECTED_TOKENS = 512
"""Turns of agents end long before what they may sample."""


@dataclass(slots=True)
class EngineLoad:
    """Load of one engine: the calls there, and how fast it answers."""

    max_calls: int
    calls: int = 0
    work: float = 0.0
    """Work of the calls in flight, in sampled tokens."""
    sessions: int = 0
    """Pinned there."""
    completed: int = 0
    seconds: float = 0.0
    """Seconds of the last calls, the newest counting most; 0 before the first, as is their work."""
    work_done: float = 0.0

    @property
    def seconds_per_token(self) -> float | None:
        """Seconds for a sampled token. Not the mean over calls: the shortest would say most."""
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
        """From a call that succeeded."""
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
    """Where the session's last call went."""
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
        """Work of the call there, in sampled tokens."""
        uncached = 0 if backend_id == self.pinned else self.prompt_tokens
        return PREFILL_WEIGHT * uncached + self.expected_tokens


class Router(Protocol):
    def choose(self, call: RouteRequest, loads: Mapping[str, EngineLoad]) -> str | None:
        """One of `loads`, which are those that can serve; None to wait until they have changed."""


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
    """An engine that is not known yet is taken for a fast one."""
    seconds = load.seconds_per_token
    if seconds is None or seconds < SAME_SPEED * fastest:
        seconds = fastest
    to_come = (load.sessions - load.calls) * call.expected_tokens
    return seconds * (call.work_at(backend_id) + (load.work + to_come) / PARALLEL)


def rendezvous(session: str, backend_id: str) -> bytes:
    return hashlib.blake2b(f"{session}\0{backend_id}".encode(), digest_size=8).digest()
