"""Retries by the service of failures that may pass, within bounds."""

import asyncio
from pathlib import Path

import pytest

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.errors import AgentError, SandboxError
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.schemas import (
    BackendSpec,
    Blame,
    FinishReason,
    Message,
    RolloutState,
    Stage,
    Task,
)
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.parts import error_of, trajectory_of
from tests.pipeline.pipelines import PlainAgent, ends, group_of, pipeline_of, pipeline_over


class Flaky(PlainAgent):
    """An agent that fails `failures` times in the stage that its task names, after some work."""

    name = "flaky"
    failures = 0
    handlers = 0
    failed: asyncio.Event

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.is_used = False

    async def init(self, rollout: RolloutContext) -> None:
        assert not self.is_used
        self.is_used = True
        Flaky.handlers += 1
        await rollout.open_sandbox()
        self._fail_in(Stage.INIT)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await rollout.sample(rollout.prompt_ids)
        self._fail_in(Stage.RUN)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        assert len(rollout.turns) == 1
        self._fail_in(Stage.EVAL)
        return Verdict(1.0)

    def _fail_in(self, stage: Stage) -> None:
        if self.task.data.get("where") == stage and Flaky.failures:
            Flaky.failures -= 1
            Flaky.failed.set()
            if self.task.data.get("is_bug"):
                raise AgentError("a bug")
            raise SandboxError("the sandbox died")


@pytest.fixture(autouse=True)
async def flaky() -> None:
    Flaky.handlers, Flaky.failed = 0, asyncio.Event()


@pytest.mark.slow
@pytest.mark.parametrize("stage", list(Stage))
async def test_a_retry_begins_from_scratch(
    engine: StubEngine, tmp_path: Path, stage: Stage
) -> None:
    Flaky.failures = 1
    async with pipeline_of([Flaky], engine, tmp_path) as pipeline:
        (rollout,) = await ends(pipeline, group_of(Flaky, where=stage))
    assert (rollout.state, rollout.attempt, rollout.error) == (RolloutState.DONE, 2, None)
    assert Flaky.handlers == 2
    assert len(trajectory_of(rollout).turns) == 1


@pytest.mark.slow
async def test_retries_have_an_end(engine: StubEngine, tmp_path: Path) -> None:
    Flaky.failures = 100
    config = PipelineConfig(max_attempts=2)
    async with pipeline_of([Flaky], engine, tmp_path, config) as pipeline:
        (rollout,) = await ends(pipeline, group_of(Flaky, where=Stage.RUN))
    assert (rollout.state, rollout.attempt, Flaky.handlers) == (RolloutState.FAILED, 2, 2)
    assert (error_of(rollout).blame, error_of(rollout).retryable) == (Blame.SANDBOX, True)
    assert trajectory_of(rollout)


async def test_a_failure_that_would_repeat_itself_is_not_retried(
    engine: StubEngine, tmp_path: Path
) -> None:
    Flaky.failures = 100
    async with pipeline_of([Flaky], engine, tmp_path) as pipeline:
        (rollout,) = await ends(pipeline, group_of(Flaky, where=Stage.RUN, is_bug=True))
    assert (rollout.state, rollout.attempt) == (RolloutState.FAILED, 1)


async def test_a_rollout_that_waits_for_its_retry_can_be_cancelled(
    engine: StubEngine, tmp_path: Path
) -> None:
    Flaky.failures = 100
    async with pipeline_of([Flaky], engine, tmp_path) as pipeline:
        await pipeline.submit([group_of(Flaky, where=Stage.INIT)])
        await Flaky.failed.wait()
        (rollout,) = await pipeline.cancel(["g.0"])
        assert rollout.state is RolloutState.CANCELLED
        (after,) = await ends(pipeline, group_of(Flaky, "after"))
        assert after.state is RolloutState.DONE
        assert pipeline.background.failure is None
    assert Flaky.handlers == 2


@pytest.mark.slow
async def test_an_outage_of_all_engines_fails_no_rollout(
    engine: StubEngine, tmp_path: Path
) -> None:
    """The outage outlasts a call's wait: rollouts in RUN start from scratch, queued ones do not."""
    engine.latency_s, outage_s = 0.05, 4.0
    impatient = PoolConfig(probe_interval_s=0.1, wait_for_backend_s=1)
    config = PipelineConfig(run_workers=8)
    async with pipeline_of([Flaky], engine, tmp_path, config, impatient) as pipeline:
        ending = asyncio.create_task(ends(pipeline, group_of(Flaky, n=96)))
        while engine.calls < 16:  # noqa: ASYNC110 - only the test's timeout bounds it
            await asyncio.sleep(0.01)
        engine.status = 500
        await asyncio.sleep(outage_s)
        engine.status = 200
        rollouts = await ending
    assert {rollout.state for rollout in rollouts} == {RolloutState.DONE}
    assert max(rollout.attempt for rollout in rollouts) == 2
    assert [rollout.attempt for rollout in rollouts].count(1) >= 96 - 8 - 8


class Patient(PlainAgent):
    """An agent that samples twice; the second call waits for `may_go_on`."""

    name = "patient"
    has_begun: asyncio.Event
    may_go_on: asyncio.Event

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await rollout.sample(rollout.prompt_ids)
        Patient.has_begun.set()
        await Patient.may_go_on.wait()
        await rollout.sample(rollout.next_prompt([Message(role="user", content="Go on.")]))
        return FinishReason.FINISHED


@pytest.mark.slow
@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_shorter_engine_that_joins_fails_no_rollout_that_began_before(
    engine: StubEngine, tiny_model: Path, chat: ChatFormat, tmp_path: Path, is_removed: bool
) -> None:
    Patient.has_begun, Patient.may_go_on = asyncio.Event(), asyncio.Event()
    reply = [5, 6, chat.end_of_turn_id]
    async with (
        StubEngine(tiny_model, lambda _: reply, max_model_len=512) as short,
        BackendPool(tmp_path, PoolConfig(probe_interval_s=0.1)) as backends,
    ):
        await backends.add(BackendSpec(url=engine.url))
        async with pipeline_over(backends, [Patient]) as pipeline:
            ending = asyncio.create_task(ends(pipeline, group_of(Patient, n=8)))
            await Patient.has_begun.wait()
            await backends.add(BackendSpec(url=short.url))
            if is_removed:
                await backends.remove(engine.url.removeprefix("http://"))
            Patient.may_go_on.set()
            rollouts = await ending
    assert [one.error for one in rollouts] == [None] * 8
    assert rollouts[0].attempt == (2 if is_removed else 1)
