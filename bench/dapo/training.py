"""One run: a trainer that draws, trains and loads weights, step by step, and its results."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.dapo.engine import CountingEngine
from bench.dapo.strategies import Fate, Way
from bench.dapo.workload import Plan, WorldAgent
from prorl_service import local
from prorl_service.client import AsyncRolloutClient
from prorl_service.client.policy import HeldPolicy
from prorl_service.schemas import Rollout, RolloutState
from prorl_service.testing import safetensors

SAMPLED_EVERY_S = 0.1
DRAW_TIMEOUT_S = 120.0
WEIGHTS = safetensors(b"the newest")

Make = Callable[[str, AsyncRolloutClient], Way]
"""Function that makes a way from the service's URL and a client of it."""


@dataclass(frozen=True, slots=True)
class Given:
    """A group that the trainer was given."""

    staleness: int
    """Versions between the newest, when it was given, and its oldest token."""
    rollouts: int
    turns: int


@dataclass
class Run:
    given: list[Given] = field(default_factory=list)
    turns: Counter[Fate] = field(default_factory=Counter)
    """Model calls, keyed by the fate of their group."""
    busy: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the beginning, and the share of RUN's workers at work."""
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """Seconds at which each training phase began and ended."""

    @property
    def wall_s(self) -> float:
        return self.pauses[-1][1]

    def series(self) -> dict[str, object]:
        """Returns what its picture shows, in seconds and shares."""
        return {
            "groups": len(self.given),
            "busy": _rounded(self.busy),
            "pauses": _rounded(self.pauses),
        }


def _rounded(pairs: Sequence[tuple[float, float]]) -> list[list[float]]:
    return [[round(first, 2), round(second, 2)] for first, second in pairs]


async def run(make: Make, plan: Plan, model: Path, log: Path) -> Run:
    """Runs against a fresh engine, and a fresh service in a process of its own."""
    with local.service([], log=log, options=_options(plan)) as service:
        held = HeldPolicy(service.url)
        policy = await asyncio.to_thread(held.claim)
        async with (
            CountingEngine(model, plan.latency_s) as engine,
            AsyncRolloutClient(service.url, training=policy.key) as client,
        ):
            await client.add_backend(engine.url)
            way = make(service.url, client)
            result = await _train(way, plan, engine, client)
            await way.close()
        await asyncio.to_thread(policy.release)
    return result


def _options(plan: Plan) -> list[str]:
    agent = f"{WorldAgent.__module__}:{WorldAgent.__qualname__}"
    workers = ["--run-workers", str(plan.run_workers), "--ready-rollouts", str(plan.ready_rollouts)]
    return ["--agent", agent, "--sandbox", "process", "--drain-s", "0", *workers]


async def _train(way: Way, plan: Plan, engine: CountingEngine, client: AsyncRolloutClient) -> Run:
    result, given, started = Run(), set[str](), time.monotonic()
    async with _beside(_sample_busy(client, plan, started, result.busy)):
        for step in range(plan.steps):
            async with asyncio.timeout(DRAW_TIMEOUT_S):
                groups = await way.draw(step)
            drawn_s = time.monotonic() - started
            result.given += [_given(group, version=step) for group in groups]
            given |= {group[0].group_id for group in groups}
            if way.lends_engines:
                engine.lend()
            await asyncio.sleep(plan.pause_s)
            await client.stream_weights([WEIGHTS])
            result.pauses.append((drawn_s, time.monotonic() - started))
    _count_turns(result.turns, engine.turns, given, way)
    return result


@asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _given(group: Sequence[Rollout], version: int) -> Given:
    oldest = [one.oldest_policy_version for one in group if one.oldest_policy_version is not None]
    turns = sum(len(one.trajectory.turns) for one in group if one.trajectory is not None)
    return Given(version - min(oldest), len(group), turns)


async def _sample_busy(
    client: AsyncRolloutClient, plan: Plan, started: float, busy: list[tuple[float, float]]
) -> None:
    while True:
        running = (await client.status()).rollouts.get(RolloutState.RUNNING, 0)
        busy.append((time.monotonic() - started, running / plan.run_workers))
        await asyncio.sleep(SAMPLED_EVERY_S)


def _count_turns(counts: Counter[Fate], turns: Counter[str], given: set[str], way: Way) -> None:
    for group_id, fate in way.fates(turns).items():
        counts[Fate.GIVEN if group_id in given else fate] += turns[group_id]
