"""The budget of RUN, which counts a rollout's work and excludes its waits."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from prorl_service.agents.base import AgentHandler, RolloutContext, Verdict
from prorl_service.agents.loop import run_turns
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.inference.sources import WeightDirectory
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.schemas import (
    BackendSpec,
    Blame,
    FinishReason,
    Limits,
    Rollout,
    RolloutState,
    Stage,
)
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tools.base import Toolset
from tests.parts import error_of, trajectory_of
from tests.pipeline.pipelines import (
    FAST_PROBES,
    PlainAgent,
    ends,
    group_of,
    pipeline_of,
    pipeline_over,
)

TURNS = 3


class Turns(PlainAgent):
    """An agent that samples `TURNS` turns, with a pause after each."""

    name = "turns"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        for _ in range(TURNS):
            await rollout.sample(rollout.prompt_ids)
            await asyncio.sleep(float(str(self.task.data.get("pause_s", 0))))
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(float(len(rollout.turns)))


class Loop(Turns):
    """An agent that plays the loop of turns, and takes something home after it."""

    name = "loop"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        sandbox = await rollout.open_sandbox()
        reason = await run_turns(rollout, Toolset([], sandbox, timeout_s=60))
        await asyncio.sleep(0.2)
        self.taken_home = True
        return reason

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(float(self.taken_home))


def score_slowly(pause_s: float) -> float:
    time.sleep(pause_s)
    return 1.0


class Scored(Turns):
    name = "scored"

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(await rollout.score(score_slowly, 0.4))


def assert_done(rollouts: list[Rollout]) -> None:
    assert [rollout.error for rollout in rollouts] == [None] * len(rollouts)
    finished = {trajectory_of(rollout).finish_reason for rollout in rollouts}
    assert finished == {FinishReason.FINISHED}


def has_calls(engine: StubEngine, count: int) -> bool:
    return engine.calls >= count and engine.in_flight > 0


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - only the test's timeout bounds it
        await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_waiting_for_a_slot_is_not_charged(engine: StubEngine, tmp_path: Path) -> None:
    engine.latency_s = 0.1
    one_slot = PoolConfig(max_calls_per_backend=1)
    async with pipeline_of([Turns], engine, tmp_path, pool_config=one_slot) as pipeline:
        group = group_of(Turns, n=16, limits=Limits(run_timeout_s=1.5))
        rollouts = await ends(pipeline, group)
    assert_done(rollouts)
    longest = max(rollouts, key=lambda rollout: rollout.timings.run_s)
    assert longest.timings.run_s > 1.5
    assert longest.timings.run_s - longest.timings.waited_s < 1.5


@pytest.mark.slow
async def test_an_update_of_weights_is_not_charged(engine: StubEngine, tmp_path: Path) -> None:
    engine.latency_s, engine.update_latency_s = 0.3, 3.0
    group = group_of(Turns, n=4, limits=Limits(run_timeout_s=1.5))
    async with BackendPool(tmp_path, FAST_PROBES) as backends:
        await backends.add(BackendSpec(url=engine.url))
        async with pipeline_over(backends, [Turns]) as pipeline:
            ending = asyncio.create_task(ends(pipeline, group))
            await until(lambda: engine.in_flight == 4)
            await backends.weights.load(WeightDirectory("/somewhere"))
            rollouts = await ending
    assert_done(rollouts)
    assert all(rollout.timings.waited_s > 1.5 for rollout in rollouts)


@pytest.mark.slow
async def test_waiting_for_an_engine_lent_to_training_is_not_charged(
    engine: StubEngine, tmp_path: Path
) -> None:
    engine.latency_s, run_timeout_s = 0.2, 1.5
    async with pipeline_of([Turns], engine, tmp_path) as pipeline:
        group = group_of(Turns, n=4, limits=Limits(run_timeout_s=run_timeout_s))
        ending = asyncio.create_task(ends(pipeline, group))
        for calls in (4, 8):
            await until(partial(has_calls, engine, calls))
            engine.lend()
            await asyncio.sleep(3 * run_timeout_s)
            assert engine.in_flight == 0
            engine.take_back()
        rollouts = await ending
    assert_done(rollouts)
    assert all(rollout.attempt == 1 for rollout in rollouts)


@pytest.mark.slow
async def test_waiting_for_an_engine_that_is_down_is_not_charged(
    engine: StubEngine, tmp_path: Path
) -> None:
    engine.latency_s = 0.2
    async with pipeline_of([Turns], engine, tmp_path) as pipeline:
        group = group_of(Turns, n=4, limits=Limits(run_timeout_s=1.5))
        ending = asyncio.create_task(ends(pipeline, group))
        await until(lambda: engine.in_flight == 4)
        engine.status = 500
        await asyncio.sleep(4.5)
        engine.status = 200
        assert_done(await ending)


@pytest.mark.processes
async def test_waiting_for_a_scoring_process_is_not_charged(
    engine: StubEngine, tmp_path: Path
) -> None:
    config = PipelineConfig(eval_workers=16)
    async with pipeline_of([Scored], engine, tmp_path, config) as pipeline:
        await ends(pipeline, group_of(Scored, "first", n=2))
        group = group_of(Scored, n=16, limits=Limits(eval_timeout_s=2))
        assert_done(await ends(pipeline, group))


@pytest.mark.slow
async def test_a_rollout_that_used_up_its_budget_is_graded(
    engine: StubEngine, tmp_path: Path
) -> None:
    async with pipeline_of([Turns], engine, tmp_path) as pipeline:
        group = group_of(Turns, limits=Limits(run_timeout_s=0.5), pause_s=60)
        (rollout,) = await ends(pipeline, group)
    assert (rollout.state, rollout.reward) == (RolloutState.DONE, 1.0)
    assert trajectory_of(rollout).finish_reason is FinishReason.TIMEOUT
    assert trajectory_of(rollout).segments[0].response_ids[:2] == [5, 6]


@pytest.fixture
async def endless(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    """An engine whose model makes malformed tool calls forever."""
    reply = [*chat.encode("<tool_call>no</tool_call>"), chat.end_of_turn_id]
    async with StubEngine(tiny_model, lambda _: reply, max_model_len=100_000) as stub:
        yield stub


@pytest.mark.slow
async def test_results_of_the_turns_are_taken_home_after_the_budget(
    endless: StubEngine, tmp_path: Path
) -> None:
    endless.latency_s = 0.3
    async with pipeline_of([Loop], endless, tmp_path) as pipeline:
        limits = Limits(run_timeout_s=1, max_turns=1000)
        (rollout,) = await ends(pipeline, group_of(Loop, limits=limits))
    assert (rollout.state, rollout.reward) == (RolloutState.DONE, 1.0)
    assert trajectory_of(rollout).finish_reason is FinishReason.TIMEOUT
    assert len(trajectory_of(rollout).turns) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("agent", [Turns, Loop])
async def test_a_timeout_fails_the_rollout_if_the_operator_wants_that(
    endless: StubEngine, tmp_path: Path, agent: type[AgentHandler]
) -> None:
    config = PipelineConfig(on_timeout="fail")
    async with pipeline_of([agent], endless, tmp_path, config) as pipeline:
        limits = Limits(run_timeout_s=0.5, max_turns=10_000)
        (rollout,) = await ends(pipeline, group_of(agent, limits=limits, pause_s=60))
    assert rollout.state is RolloutState.FAILED
    assert (error_of(rollout).kind, error_of(rollout).stage) == ("StageTimeout", Stage.RUN)
    assert trajectory_of(rollout).finish_reason is FinishReason.TIMEOUT
    assert error_of(rollout).blame in (Blame.AGENT, Blame.BACKEND)
