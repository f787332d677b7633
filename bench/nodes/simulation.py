"""Discrete events: rollouts on services behind a front, whose costs were measured.

A front is one event loop: what it does for a rollout takes processor time, and waits for its
turn. In the runs that it is compared with, all processes share the cores of one machine; in a
cluster the front and each service has a core of its own.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Self

BEGIN_SHARE = 0.45
"""Share of a front's cost that it has before a rollout runs."""
AHEAD = 0.5
"""Rollouts that wait at a service, by its slots."""
LOOK_S = 10.0
WARM_SHARE = 0.3
"""Share of the time before the figures begin."""
SPREAD = 0.8
"""Sigma of the logarithm of a rollout's length."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor seconds."""

    front_s: float
    """Time that a front takes for a rollout."""
    rest_s: float
    """Time that all other processes take for a rollout."""
    look_s: float = 0.0
    """Time that a front takes for a service at rest, in each second."""


@dataclass(frozen=True, slots=True)
class Shape:
    services: int
    slots: int
    calls: int
    call_s: Callable[[random.Random], float]
    """Length of a call, in seconds."""
    rollout_s: float
    """Mean length of a rollout's calls together, in seconds."""

    @classmethod
    def even(cls, services: int, slots: int, calls: int, mean_s: float) -> Self:
        """Calls take from half to one and a half of `mean_s`."""

        def call_s(rng: random.Random) -> float:
            return mean_s * rng.uniform(0.5, 1.5)

        return cls(services, slots, calls, call_s, calls * mean_s)

    @classmethod
    def long_tailed(cls, services: int, slots: int, mean_s: float) -> Self:
        """Rollouts take a lognormal time. Their calls do not matter to the front."""
        mu = math.log(mean_s) - SPREAD * SPREAD / 2
        return cls(services, slots, 1, lambda rng: rng.lognormvariate(mu, SPREAD), mean_s)


@dataclass(frozen=True, slots=True)
class Simulated:
    busy: float
    """Share of the slots' time that calls took."""
    rollouts_per_s: float
    front_cores: float
    """Cores that the front used."""


Then = Callable[[float], None]
"""What happens at a time."""


@dataclass(slots=True)
class Clock:
    events: list[tuple[float, int, Then]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def at(self, when: float, then: Then) -> None:
        heapq.heappush(self.events, (when, next(self._numbers), then))

    def run(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            now, _, then = heapq.heappop(self.events)
            then(now)


@dataclass(slots=True)
class Processors:
    """Cores that are shared in the order of arrival."""

    clock: Clock
    free: float
    """Cores without work."""
    _waiting: deque[tuple[float, Then]] = field(default_factory=deque)

    def run(self, now: float, cost_s: float, then: Then) -> None:
        """Calls `then` when work of that cost is done."""
        if self.free < 1:
            self._waiting.append((cost_s, then))
            return
        self.free -= 1
        self.clock.at(now + cost_s, lambda end: self._done(end, then))

    def _done(self, now: float, then: Then) -> None:
        self.free += 1
        if self._waiting:
            self.run(now, *self._waiting.popleft())
        then(now)


@dataclass(slots=True)
class Loop:
    """An event loop: one thing at a time."""

    processors: Processors
    used_s: float = 0.0
    _is_busy: bool = False
    _waiting: deque[tuple[float, Then]] = field(default_factory=deque)

    def run(self, now: float, cost_s: float, then: Then) -> None:
        if self._is_busy:
            self._waiting.append((cost_s, then))
            return
        self._is_busy = True
        self.used_s += cost_s
        self.processors.run(now, cost_s, lambda end: self._done(end, then))

    def _done(self, now: float, then: Then) -> None:
        self._is_busy = False
        if self._waiting:
            self.run(now, *self._waiting.popleft())
        then(now)


@dataclass(slots=True)
class Service:
    front: Loop
    loop: Loop
    idle: int
    """Slots without a rollout."""
    waiting: int = 0
    """Rollouts that it has and does not run."""


@dataclass(slots=True)
class Run:
    shape: Shape
    costs: Costs
    clock: Clock
    rng: random.Random
    warm_s: float
    seconds: float
    busy_s: float = 0.0
    ended: int = 0

    def give(self, service: Service, now: float) -> None:
        """The front gives a rollout to the service."""
        cost_s = BEGIN_SHARE * self.costs.front_s
        service.front.run(now, cost_s, lambda then: self._arrive(service, then))

    def _arrive(self, service: Service, now: float) -> None:
        service.waiting += 1
        if service.idle:
            service.idle -= 1
            self._begin(service, now)

    def _begin(self, service: Service, now: float) -> None:
        service.waiting -= 1
        self._turn(service, self.shape.calls, now)

    def _turn(self, service: Service, left: int, now: float) -> None:
        """The service prepares a call; `left` calls are to be made."""
        cost_s = self.costs.rest_s / self.shape.calls
        service.loop.run(now, cost_s, lambda then: self._call(service, left - 1, then))

    def _call(self, service: Service, left: int, now: float) -> None:
        end = now + self.shape.call_s(self.rng)
        self.busy_s += max(0.0, min(end, self.seconds) - max(now, self.warm_s))
        if left:
            self.clock.at(end, lambda then: self._turn(service, left, then))
        else:
            self.clock.at(end, lambda then: self._end(service, then))

    def _end(self, service: Service, now: float) -> None:
        self.ended += now > self.warm_s
        cost_s = (1 - BEGIN_SHARE) * self.costs.front_s
        service.front.run(now, cost_s, lambda then: self.give(service, then))
        if service.waiting:
            self._begin(service, now)
        else:
            service.idle += 1

    def look(self, service: Service, now: float) -> None:
        """The front looks after the service, `LOOK_S` seconds' worth at once."""
        service.front.run(now, LOOK_S * self.costs.look_s, lambda _: None)
        self.clock.at(now + LOOK_S, lambda then: self.look(service, then))


def simulate(shape: Shape, costs: Costs, *, cores: int | None, least_s: float = 0) -> Simulated:
    """Simulates the time of four rollouts, and `least_s` seconds at least. `cores`: those that all
    processes share; None: the front and each service has its own."""
    clock, rng = Clock(), random.Random(1)
    processors = Processors(clock, math.inf if cores is None else cores)
    front = Loop(processors)
    seconds = max(least_s, 4 * shape.rollout_s)
    run = Run(shape, costs, clock, rng, WARM_SHARE * seconds, seconds)
    for _ in range(shape.services):
        _add(run, Service(front, Loop(processors), idle=shape.slots))
    clock.run(seconds)
    measured_s = seconds - run.warm_s
    return Simulated(
        busy=run.busy_s / measured_s / (shape.services * shape.slots),
        rollouts_per_s=run.ended / measured_s,
        front_cores=front.used_s / seconds,
    )


def _add(run: Run, service: Service) -> None:
    if run.costs.look_s:
        run.clock.at(LOOK_S * run.rng.random(), lambda now: run.look(service, now))
    for _ in range(round((1 + AHEAD) * run.shape.slots)):
        when = run.shape.rollout_s / 10 * run.rng.random()
        run.clock.at(when, lambda now: run.give(service, now))
