"""Rollouts and the engines' KV cache: they wait for room before RUN, and before later turns."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.agents.base import RolloutContext
from prorl_service.inference.cache_budget import CachePlace
from prorl_service.inference.pool import BackendPool
from prorl_service.pipeline.pipeline import Pipeline
from prorl_service.schemas import (
    BackendSpec,
    BackendState,
    EngineGauges,
    EngineReport,
    FinishReason,
    Limits,
    RolloutState,
)
from prorl_service.testing import StubEngine
from prorl_service.utils.budget import WorkClock
from tests.inference.gauges import GaugedEngine
from tests.inference.pools import generate
from tests.pipeline.pipelines import FAST_PROBES, PlainAgent, ends, group_of, pipeline_over, taken
from tests.waits import condition

KV_TOKENS, RESPONSE_TOKENS, TURNS = 1024, 256, 4
SMALL = (
    "import sys, pathlib; from prorl_service.inference.reference_engine import serve;"
    "serve(pathlib.Path(sys.argv[1]), port=int(sys.argv[3]), max_model_len=512,"
    "kv_cache_gib=2**-10)"
)
"""A reference engine with 1 MiB of cache: 1,024 tokens of the tiny model."""


class Growing(PlainAgent):
    """Samples several turns, each after a wait for `step`."""

    name = "growing"
    step: asyncio.Semaphore
    running = most_running = 0

    async def run(self, rollout: RolloutContext) -> FinishReason:
        Growing.running += 1
        Growing.most_running = max(Growing.most_running, Growing.running)
        ids = list(rollout.prompt_ids)
        for _ in range(self.task.data["turns"]):  # type: ignore[arg-type]
            async with Growing.step:
                await rollout.sample(ids, max_tokens=16)
            ids = [*rollout.attempt.ledger.ids, 5, 6]
        Growing.running -= 1
        return FinishReason.FINISHED


@pytest.fixture(autouse=True)
def fresh() -> None:
    Growing.step, Growing.running, Growing.most_running = asyncio.Semaphore(1000), 0, 0


@asynccontextmanager
async def pipeline_on(url: str, directory: Path) -> AsyncIterator[tuple[Pipeline, BackendPool]]:
    async with BackendPool(directory / "spool", FAST_PROBES) as backends:
        await backends.add(BackendSpec(url=url))
        async with pipeline_over(backends, [Growing]) as pipeline:
            yield pipeline, backends


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[GaugedEngine]:
    async with GaugedEngine(tiny_model, lambda _: [5] * 8) as stub:
        yield stub


@pytest.mark.processes
async def test_rollouts_on_a_small_cache_run_as_many_as_fit(
    tiny_model: Path, tmp_path: Path
) -> None:
    limits = Limits(max_response_tokens=RESPONSE_TOKENS)
    command = [sys.executable, "-c", SMALL, str(tiny_model)]
    with local.running(command, log=tmp_path / "engine.log") as engine:
        async with pipeline_on(engine.url, tmp_path) as (pipeline, backends):
            status = backends.cache.status()
            assert status is not None
            assert status.budget_tokens == KV_TOKENS
            groups = [group_of(Growing, f"g{n}", 4, limits, turns=TURNS) for n in range(4)]
            rollouts = await ends(pipeline, *groups)
            [gauges] = [one.gauges for one in backends.statuses()]
    assert {one.state for one in rollouts} == {RolloutState.DONE}
    assert Growing.most_running < len(rollouts)
    turns = [turn for one in rollouts if one.trajectory for turn in one.trajectory.turns]
    assert all(turn.times is not None and turn.times.decode_s <= turn.model_s for turn in turns)
    assert gauges is not None
    assert gauges.preemptions == 0


async def test_those_that_wait_are_ready_and_can_be_cancelled(
    engine: GaugedEngine, tmp_path: Path
) -> None:
    Growing.step = asyncio.Semaphore(0)
    engine.gauges = EngineGauges(kv_tokens=500)
    limits = Limits(max_response_tokens=RESPONSE_TOKENS)
    async with pipeline_on(engine.url, tmp_path) as (pipeline, backends):
        group = group_of(Growing, n=10, limits=limits, turns=1)
        await pipeline.submit([group])

        def waiting() -> int:
            status = backends.cache.status()
            return 0 if status is None else status.waiting

        await condition(lambda: waiting() == 7)
        assert (Growing.running, pipeline.running()["run"]) == (3, 3)  # type: ignore[index]
        await pipeline.cancel(["g.3", "g.4"])
        assert waiting() == 5
        for _ in range(8):
            Growing.step.release()
        states = [one.state async for one in taken(pipeline, group.rollout_ids())]
    assert states.count(RolloutState.DONE) == 8
    assert Growing.most_running < 8


@pytest.mark.slow
async def test_a_held_turn_is_charged_to_no_budget(engine: GaugedEngine, tmp_path: Path) -> None:
    engine.gauges = EngineGauges(kv_tokens=100)
    async with BackendPool(tmp_path, FAST_PROBES) as pool:
        await pool.add(BackendSpec(url=engine.url))
        clock = WorkClock()
        with pool.session("old") as old, pool.session("young", clock) as young:
            first = CachePlace("a", "g", 2, 40)
            await old.enter(first)
            await young.enter(CachePlace("a", "h", 2, 40))
            pool.cache.grow(first, 90)
            async with clock.deadline(0.2):
                held = asyncio.create_task(generate(young))
                await asyncio.sleep(0.5)
                assert not held.done()
                old.close()
                await held
            assert clock.waited_s > 0.4
        assert pool.cache.status() is not None


async def test_an_engine_that_says_nothing_turns_it_off(tiny_model: Path, tmp_path: Path) -> None:
    async with (
        StubEngine(tiny_model, lambda _: [5]) as silent,
        pipeline_on(silent.url, tmp_path) as (pipeline, backends),
    ):
        rollouts = await ends(pipeline, group_of(Growing, n=20, turns=1))
        assert backends.cache.status() is None
    assert {one.state for one in rollouts} == {RolloutState.DONE}


async def test_services_behind_a_front_share_the_cache(
    engine: GaugedEngine, tmp_path: Path
) -> None:
    async with BackendPool(tmp_path / "front") as front, BackendPool(tmp_path / "behind") as behind:
        await front.add(BackendSpec(url=engine.url))
        [offer] = front.offers(4)
        assert offer.report == EngineReport(state=BackendState.HEALTHY, kv_tokens=250)
        await behind.add(offer)
        status = behind.cache.status()
        assert status is not None
        assert status.budget_tokens == 250
