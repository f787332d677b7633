import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.agents.registry import AgentRegistry
from prorl_service.errors import (
    Conflict,
    EvaluatorError,
    InvalidRequest,
    NotFound,
    Overloaded,
    TaskError,
)
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.pipeline.journal import Journal
from prorl_service.pipeline.journal_tables import Retention
from prorl_service.pipeline.pipeline import Pipeline, PipelineConfig
from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas import (
    BackendSpec,
    Blame,
    FinishReason,
    Group,
    Limits,
    Message,
    Rollout,
    RolloutState,
    Stage,
    Task,
    Trajectory,
)
from prorl_service.testing import FakeSandboxes, StubEngine
from prorl_service.tokens.chat import ChatFormat


class Probe(AgentHandler):
    """Does in each stage what `task.data` says: pass, fail in some way, or hang."""

    name = "probe"
    started: asyncio.Event

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        await rollout.open_sandbox()
        await self._act(Stage.INIT)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await rollout.sample(rollout.prompt_ids)
        await self._act(Stage.RUN)
        if self.task.data.get(Stage.RUN) == "no reason":
            return None  # type: ignore[return-value]
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        await rollout.open_sandbox()
        await self._act(Stage.EVAL)
        match self.task.data.get(Stage.EVAL):
            case "nan":
                return Verdict(math.nan)
            case "float":
                return 1.0  # type: ignore[return-value]
            case "key":
                return Verdict(1.0, {1: 1.0})  # type: ignore[dict-item]
            case "surrogate":
                raise EvaluatorError("\ud800")
            case "sample":
                await rollout.sample(rollout.prompt_ids)
        return Verdict(1.0)

    async def _act(self, stage: Stage) -> None:
        match self.task.data.get(stage):
            case "hang":
                Probe.started.set()
                await asyncio.Event().wait()
            case "bug":
                raise KeyError("oops")
            case "task":
                raise TaskError("no such file")
            case "evaluator":
                raise EvaluatorError("no verdict")
            case "cancel":
                helper = asyncio.ensure_future(asyncio.Event().wait())
                helper.cancel()
                await helper
            case "stubborn":
                Probe.started.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                raise KeyError("and something else instead")


@pytest.fixture
async def engine(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    async with StubEngine(tiny_model, lambda _: [5, 6, chat.end_of_turn_id]) as stub:
        yield stub


@pytest.fixture
def sandboxes() -> FakeSandboxes:
    return FakeSandboxes(lambda name, arguments: ToolResult(""))


@asynccontextmanager
async def running(
    engine: StubEngine,
    sandboxes: FakeSandboxes,
    spool: Path,
    config: PipelineConfig = PipelineConfig(),
    retention: Retention = Retention(),
) -> AsyncIterator[Pipeline]:
    Probe.started = asyncio.Event()
    pool_config = PoolConfig(wait_for_backend_s=20)
    async with BackendPool(spool, pool_config) as backends:
        await backends.add(BackendSpec(url=engine.url))
        agents = AgentRegistry([f"{__name__}:Probe"])
        async with (
            Journal(retention=retention) as journal,
            Pipeline(journal, backends, sandboxes, agents, config) as pipeline,
        ):
            yield pipeline


def group(
    group_id: str = "g", n: int = 1, limits: Limits = Limits(), acts: dict[Stage, str] | None = None
) -> Group:
    messages = [Message(role="user", content="Go.")]
    task = Task(task_id="t", agent="probe", messages=messages, data=dict(acts or {}))
    return Group(group_id=group_id, task=task, n=n, limits=limits)


async def outcome(pipeline: Pipeline, submitted: Group) -> list[Rollout]:
    await pipeline.submit([submitted])
    return await collect(pipeline, submitted.rollout_ids())


async def collect(pipeline: Pipeline, rollout_ids: list[str]) -> list[Rollout]:
    return [ended.to_wire() async for ended in pipeline.ended(rollout_ids)]


def trajectory(rollout: Rollout) -> Trajectory:
    assert rollout.trajectory is not None
    return rollout.trajectory


async def now(pipeline: Pipeline, rollout_id: str) -> Rollout:
    return (await pipeline.get(rollout_id)).to_wire()


async def test_a_group_passes_all_stages_and_frees_its_sandboxes(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        records = await outcome(pipeline, group(n=20))
        assert {record.state for record in records} == {RolloutState.DONE}
        assert {record.rollout_id for record in records} == {f"g.{i}" for i in range(20)}
        assert records[0].reward == 1.0
        assert trajectory(records[0]).segments[0].response_ids[:2] == [5, 6]
    assert len(sandboxes.made) == 40
    assert not any(sandbox.running for sandbox in sandboxes.made)


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize(
    ("how", "kind", "blame"),
    [
        ("bug", "KeyError", None),
        ("task", "TaskError", Blame.TASK),
        ("evaluator", "EvaluatorError", Blame.EVALUATOR),
        ("hang", "StageTimeout", None),
    ],
)
async def test_a_failing_stage_is_blamed_and_cleaned_up(
    engine: StubEngine,
    sandboxes: FakeSandboxes,
    tmp_path: Path,
    stage: Stage,
    how: str,
    kind: str,
    blame: Blame | None,
) -> None:
    by_stage = {Stage.INIT: Blame.SANDBOX, Stage.RUN: Blame.AGENT, Stage.EVAL: Blame.EVALUATOR}
    limits = Limits(**{f"{stage.value}_timeout_s": 0.2})
    async with running(engine, sandboxes, tmp_path) as pipeline:
        failing = group(limits=limits, acts={stage: how})
        (record,) = await outcome(pipeline, failing)
        (after,) = await outcome(pipeline, group("after"))
    assert record.state is RolloutState.FAILED
    assert record.error is not None
    assert (record.error.kind, record.error.stage) == (kind, stage)
    assert record.error.blame == (blame or by_stage[stage])
    assert record.reward is None
    assert (record.trajectory is None) == (stage is Stage.INIT)
    assert after.state is RolloutState.DONE
    assert not any(sandbox.running for sandbox in sandboxes.made)


@pytest.mark.parametrize(
    ("stage", "how", "blame"),
    [
        (Stage.RUN, "no reason", Blame.AGENT),
        (Stage.EVAL, "nan", Blame.EVALUATOR),
        (Stage.EVAL, "float", Blame.EVALUATOR),
        (None, "key", Blame.AGENT),
        (None, "surrogate", Blame.AGENT),
    ],
)
async def test_nonsense_from_a_handler_fails_its_rollout_only(
    engine: StubEngine,
    sandboxes: FakeSandboxes,
    tmp_path: Path,
    stage: Stage | None,
    how: str,
    blame: Blame,
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        (record,) = await outcome(pipeline, group(acts={stage or Stage.EVAL: how}))
        assert record.error is not None
        assert (record.error.stage, record.error.blame) == (stage, blame)
        assert pipeline.background.failure is None


async def test_a_timed_out_rollout_returns_what_was_sampled(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        (record,) = await outcome(
            pipeline, group(limits=Limits(run_timeout_s=1), acts={Stage.RUN: "hang"})
        )
    assert trajectory(record).finish_reason is FinishReason.TIMEOUT
    assert trajectory(record).segments[0].response_ids[:2] == [5, 6]


@pytest.mark.parametrize("stage", list(Stage))
async def test_cancelling_a_rollout_at_work(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path, stage: Stage
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        await pipeline.submit([group(acts={stage: "hang"})])
        await Probe.started.wait()
        (record,) = await pipeline.cancel(["g.0"])
        assert record.state is RolloutState.CANCELLED
        assert not any(sandbox.running for sandbox in sandboxes.made)


async def test_cancelling_rollouts_in_queues(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    config = PipelineConfig(init_workers=2, run_workers=1, eval_workers=1, ready_rollouts=1)
    async with running(engine, sandboxes, tmp_path, config) as pipeline:
        await pipeline.submit([group(n=10, acts={Stage.RUN: "hang"})])
        await Probe.started.wait()
        records = await pipeline.cancel([f"g.{i}" for i in range(10)])
        assert {record.state for record in records} == {RolloutState.CANCELLED}
        assert not any(sandbox.running for sandbox in sandboxes.made)
        (after,) = await outcome(pipeline, group("after"))
        assert after.state is RolloutState.DONE
        assert pipeline.background.failure is None


async def test_init_and_eval_go_on_while_run_is_busy(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    config = PipelineConfig(init_workers=1, run_workers=2, eval_workers=1, ready_rollouts=4)
    async with running(engine, sandboxes, tmp_path, config) as pipeline:
        await pipeline.submit([group("busy", acts={Stage.RUN: "hang"})])
        await Probe.started.wait()
        records = await outcome(pipeline, group("rest", n=8))
        assert {record.state for record in records} == {RolloutState.DONE}
        assert (await now(pipeline, "busy.0")).state is RolloutState.RUNNING


async def test_stopping_the_pipeline_ends_all_waits_and_frees_all_sandboxes(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        in_run = group("a", n=100, acts={Stage.RUN: "hang"})
        await pipeline.submit([in_run, group("b", acts={Stage.INIT: "hang"})])
        await Probe.started.wait()
        waiting = asyncio.create_task(collect(pipeline, ["b.0", *in_run.rollout_ids()]))
        await asyncio.sleep(0)
    assert await waiting == []
    assert not any(sandbox.running for sandbox in sandboxes.made)


async def test_a_submission_is_accepted_whole_or_not_at_all(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    wrong = group("wrong").model_copy(
        update={"task": group().task.model_copy(update={"agent": "x"})}
    )
    async with running(engine, sandboxes, tmp_path) as pipeline:
        with pytest.raises(InvalidRequest) as refusal:
            await pipeline.submit([group("right"), wrong])
        assert refusal.value.fields[0].field == "groups.1.task.agent"
        assert pipeline.count_by_state() == {}
    assert engine.calls == 0


async def test_what_ended_first_is_forgotten_first_and_whole(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path, retention=Retention(keep_bytes=1)) as pipeline:
        await pipeline.submit([group("long", acts={Stage.RUN: "hang"})])
        await Probe.started.wait()
        await outcome(pipeline, group("first", n=2))
        await outcome(pipeline, group("second", n=2))
        assert (await now(pipeline, "second.1")).state is RolloutState.DONE
        for rollout_id in ("first.0", "first.1"):
            with pytest.raises(NotFound):
                await pipeline.get(rollout_id)
        await pipeline.cancel(["long.0"])
        assert (await now(pipeline, "long.0")).state is RolloutState.CANCELLED


async def test_too_much_unfinished_work_is_refused_for_the_time_being(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path, PipelineConfig(max_unfinished=3)) as pipeline:
        await pipeline.submit([group("a", n=2, acts={Stage.RUN: "hang"})])
        with pytest.raises(Overloaded):
            await pipeline.submit([group("b", n=2)])
        await pipeline.cancel(["a.0", "a.1"])
        await outcome(pipeline, group("b", n=2))


async def test_concurrent_submissions_are_accepted_whole_or_not_at_all(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        one = pipeline.submit([group("a"), group("shared", n=1)])
        other = pipeline.submit([group("b"), group("shared", n=2)])
        results = await asyncio.gather(one, other, return_exceptions=True)
        assert [isinstance(result, Conflict) for result in results].count(True) == 1
        assert sum(pipeline.count_by_state().values()) in (2, 3)


async def test_a_handler_cancelled_from_inside_costs_its_rollout_only(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    config = PipelineConfig(run_workers=1)
    async with running(engine, sandboxes, tmp_path, config) as pipeline:
        (record,) = await outcome(pipeline, group(acts={Stage.RUN: "cancel"}))
        assert record.error is not None
        assert record.error.blame is Blame.AGENT
        (after,) = await outcome(pipeline, group("after"))
        assert after.state is RolloutState.DONE
        assert pipeline.background.failure is None


async def test_a_handler_that_swallows_cancellation_cannot_hold_up_a_shutdown(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        await pipeline.submit([group(acts={Stage.RUN: "stubborn"})])
        await Probe.started.wait()


async def test_a_run_that_waits_for_its_engine_blames_the_engine(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    engine.latency_s = 3
    async with running(engine, sandboxes, tmp_path) as pipeline:
        (record,) = await outcome(pipeline, group(limits=Limits(run_timeout_s=1)))
    assert record.error is not None
    assert (record.error.kind, record.error.blame) == ("StageTimeout", Blame.BACKEND)
    assert record.error.retryable


async def test_the_policy_is_not_sampled_after_run(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        (record,) = await outcome(pipeline, group(acts={Stage.EVAL: "sample"}))
    assert record.error is not None
    assert record.error.kind == "AgentError"
    assert len(trajectory(record).turns) == 1


async def test_all_backends_gone_fails_with_the_backends_blame(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        engine.status = 500
        (record,) = await outcome(pipeline, group())
        assert record.error is not None
        assert (record.error.blame, record.error.retryable) == (Blame.BACKEND, True)
        engine.status = 200
        (after,) = await outcome(pipeline, group("after"))
        assert after.state is RolloutState.DONE
