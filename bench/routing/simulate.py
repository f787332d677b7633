"""Groups of multi-turn rollouts on simulated engines, in steps of `STEP_S`.

The engine, about an 8B model on one large GPU: a decoding step takes 8 ms and 0.1 ms for each
sequence in the batch; prompts are computed first come first served, 20,000 tokens a second, next to
decoding; the cache holds 400,000 tokens: contexts of calls in flight cannot be evicted, those of
waiting sessions are, least recently used first; a call that finds no room queues.

The work: groups of 8, lognormal numbers of turns and tokens (heavy-tailed, as agents' are), tools
that take 1.5 s on average; `AT_ONCE` rollouts at most; the next group begins when there is room.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean, quantiles

from prorl_service.inference.routing import EngineLoad, Router, RouteRequest

STEP_S = 0.05
DECODE_S, DECODE_S_PER_SEQUENCE = 0.008, 0.0001
PREFILL_TOKENS_PER_S = 20_000
CACHE_TOKENS = 400_000
MAX_CALLS = 256
MAX_TOKENS, MAX_TURNS = 1024, 40

GROUPS, SIBLINGS, AT_ONCE = 64, 8, 192
PROMPT_TOKENS, TOOL_TOKENS, TOOL_S = 3000, 400, 1.5
LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Run:
    group_s: list[float]
    """Seconds of each group, from its first rollout's start to its last one's end."""
    moves: int
    """Times that a rollout continued on another engine."""

    @property
    def mean_s(self) -> float:
        return fmean(self.group_s)

    @property
    def p90_s(self) -> float:
        return quantiles(self.group_s, n=10, method="inclusive")[-1]


@dataclass(slots=True)
class Engine:
    name: str
    slowness: float = 1.0
    from_s: float = 0.0
    until_s: float = float("inf")
    load: EngineLoad = field(default_factory=lambda: EngineLoad(MAX_CALLS))
    calls: list["Running"] = field(default_factory=list)
    queue: deque["Running"] = field(default_factory=deque)
    cached: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """Contexts of waiting sessions, the least recently used first."""

    def is_up(self, now: float) -> bool:
        return self.from_s <= now < self.until_s

    def take(self, call: "Running") -> None:
        call.uncached = max(0, call.context - self.cached.pop(call.rollout.session, 0))
        self.queue.append(call)

    def _admit(self) -> None:
        busy = sum(call.context + MAX_TOKENS for call in self.calls)
        while self.queue and busy + self.queue[0].context + MAX_TOKENS <= CACHE_TOKENS:
            call = self.queue.popleft()
            call.to_prefill = call.uncached
            self.calls.append(call)
            busy += call.context + MAX_TOKENS
        while self.cached and busy + sum(self.cached.values()) > CACHE_TOKENS:
            self.cached.popitem(last=False)

    def step(self, step_s: float = STEP_S) -> Iterator["Running"]:
        """Simulates one step; yields the calls that end in it."""
        self._admit()
        prefill = PREFILL_TOKENS_PER_S * step_s / self.slowness
        decoding = []
        for call in self.calls:
            if call.to_prefill > 0:
                done = min(prefill, call.to_prefill)
                call.to_prefill -= done
                prefill -= done
            else:
                decoding.append(call)
        token_s = self.slowness * (DECODE_S + DECODE_S_PER_SEQUENCE * len(decoding))
        for call in decoding:
            call.to_decode -= step_s / token_s
            if call.to_decode <= 0:
                self.calls.remove(call)
                self.cached[call.rollout.session] = call.context + call.tokens
                yield call


@dataclass(slots=True)
class Rollout:
    session: str
    group: int
    turns: list[tuple[int, float]]
    """Tokens sampled, and seconds of the tool that follows."""
    context: int = PROMPT_TOKENS
    pinned: str | None = None
    at_turn: int = 0
    moves: int = 0
    ready_at: float = 0.0


@dataclass(slots=True)
class Running:
    rollout: Rollout
    engine: Engine
    work: float
    tokens: int
    context: int
    began_at: float
    to_decode: float
    uncached: float = 0.0
    to_prefill: float = 0.0


def workload(seed: int) -> list[list[Rollout]]:
    rng = random.Random(seed)

    def turn() -> tuple[int, float]:
        return min(MAX_TOKENS, 1 + int(rng.lognormvariate(4.9, 0.8))), rng.expovariate(1 / TOOL_S)

    def turns() -> list[tuple[int, float]]:
        return [turn() for _ in range(min(MAX_TURNS, 1 + int(rng.lognormvariate(1.8, 0.7))))]

    return [[Rollout(f"g{g}.{i}", g, turns()) for i in range(SIBLINGS)] for g in range(GROUPS)]


def run(router: Router, engines: list[Engine], seed: int) -> Run:
    groups = workload(seed)
    waiting = deque(groups)
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    thinking: list[Rollout] = []
    inflight, now = 0, 0.0
    while (waiting or inflight) and now < LIMIT_S:
        while waiting and inflight + SIBLINGS <= AT_ONCE:
            group = waiting.popleft()
            began[group[0].group] = now
            thinking += group
            inflight += len(group)
        for engine in engines:
            if not engine.is_up(now):
                thinking += _fail_all(engine)
        thinking = [one for one in thinking if not _begin(one, router, engines, now)]
        now += STEP_S
        for engine in engines:
            for call in list(engine.step()) if engine.is_up(now) else ():
                if _end(call, now):
                    inflight -= 1
                    ended[call.rollout.group] = now
                else:
                    thinking.append(call.rollout)
    group_s = [ended.get(group, LIMIT_S) - start for group, start in began.items()]
    return Run(group_s, sum(one.moves for group in groups for one in group))


def _begin(rollout: Rollout, router: Router, engines: list[Engine], now: float) -> bool:
    if rollout.ready_at > now:
        return False
    loads = {engine.name: engine.load for engine in engines if engine.is_up(now)}
    call = RouteRequest(rollout.session, rollout.pinned, rollout.context, MAX_TOKENS)
    name = router.choose(call, loads)
    if name is None:
        return False
    engine = next(engine for engine in engines if engine.name == name)
    if rollout.pinned != name:
        rollout.moves += rollout.pinned is not None
        _unpin(rollout, engines)
        engine.load.sessions += 1
        rollout.pinned = name
    work = call.work_at(name)
    engine.load.begin(work)
    tokens = rollout.turns[rollout.at_turn][0]
    engine.take(Running(rollout, engine, work, tokens, rollout.context, now, tokens))
    return True


def _unpin(rollout: Rollout, engines: list[Engine]) -> None:
    for engine in engines:
        if engine.name == rollout.pinned:
            engine.load.sessions -= 1
            engine.cached.pop(rollout.session, None)


def _end(call: Running, now: float) -> bool:
    """Ends a call; returns whether its rollout has ended."""
    rollout, load = call.rollout, call.engine.load
    load.end(call.work)
    uncached = int(call.uncached)
    load.learn(sampled=call.tokens, uncached=uncached, took_s=now - call.began_at)
    rollout.context += call.tokens + TOOL_TOKENS
    rollout.ready_at = now + rollout.turns[rollout.at_turn][1]
    rollout.at_turn += 1
    if rollout.at_turn < len(rollout.turns):
        return False
    load.sessions -= 1
    call.engine.cached.pop(rollout.session, None)
    return True


def _fail_all(engine: Engine) -> list[Rollout]:
    """Fails all calls; their sessions continue elsewhere with the same prompt."""
    calls = [*engine.calls, *engine.queue]
    for call in calls:
        engine.load.end(call.work)
    engine.calls.clear()
    engine.queue.clear()
    engine.cached.clear()
    return [call.rollout for call in calls]


def engines_of(scenario: str) -> list[Engine]:
    """Makes the four engines of a scenario."""
    engines = [Engine(f"engine-{i}") for i in range(4)]
    match scenario:
        case "one slow":
            engines[0].slowness = 10.0
        case "one added late":
            engines[3].from_s = 60.0
        case "one dying":
            engines[3].until_s = 60.0
    return engines


SCENARIOS = ("steady", "one slow", "one added late", "one dying")
