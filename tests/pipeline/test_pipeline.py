"""Groups through a pipeline: all stages, failures in them, and their ends."""

import asyncio

import pytest

from prorl_service.errors import (
    Conflict,
    NotFound,
    Overloaded,
)
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.pipeline.pipeline import Pipeline
from prorl_service.rollouts.admission import SLICE
from prorl_service.rollouts.journal.tables import Retention
from prorl_service.schemas import (
    Blame,
    Limits,
    Rollout,
    RolloutState,
    Stage,
)
from prorl_service.testing import FakeSandboxes, StubEngine
from tests.parts import error_of, trajectory_of
from tests.pipeline.pipelines import ends, taken
from tests.pipeline.probe_agent import Probe, Start, group


async def collect(pipeline: Pipeline, rollout_ids: list[str]) -> list[Rollout]:
    return [ended async for ended in taken(pipeline, rollout_ids)]


async def now(pipeline: Pipeline, rollout_id: str) -> Rollout:
    return (await pipeline.get(rollout_id)).to_wire()


async def test_a_group_passes_all_stages_and_frees_its_sandboxes(
    start: Start, sandboxes: FakeSandboxes
) -> None:
    async with start() as pipeline:
        records = await ends(pipeline, group(n=20))
        assert {record.state for record in records} == {RolloutState.DONE}
        assert {record.rollout_id for record in records} == {f"g.{i}" for i in range(20)}
        assert records[0].reward == 1.0
        assert trajectory_of(records[0]).segments[0].response_ids[:2] == [5, 6]
    assert len(sandboxes.made) == 40
    assert not any(sandbox.running for sandbox in sandboxes.made)


@pytest.mark.slow
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
    start: Start, sandboxes: FakeSandboxes, stage: Stage, how: str, kind: str, blame: Blame | None
) -> None:
    by_stage = {Stage.INIT: Blame.SANDBOX, Stage.RUN: Blame.AGENT, Stage.EVAL: Blame.EVALUATOR}
    limits = Limits(**{f"{stage.value}_timeout_s": 0.2})
    config = PipelineConfig(on_timeout="fail")
    async with start(config) as pipeline:
        failing = group(limits=limits, acts={stage: how})
        (record,) = await ends(pipeline, failing)
        (after,) = await ends(pipeline, group("after"))
    assert record.state is RolloutState.FAILED
    assert (error_of(record).kind, error_of(record).stage) == (kind, stage)
    assert error_of(record).blame == (blame or by_stage[stage])
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
        (Stage.EVAL, "no such turn", Blame.EVALUATOR),
        (None, "key", Blame.AGENT),
        (None, "surrogate", Blame.AGENT),
    ],
)
async def test_nonsense_from_a_handler_fails_its_rollout_only(
    pipeline: Pipeline, stage: Stage | None, how: str, blame: Blame
) -> None:
    (record,) = await ends(pipeline, group(acts={stage or Stage.EVAL: how}))
    assert (error_of(record).stage, error_of(record).blame) == (stage, blame)
    assert pipeline.background.failure is None
    if how == "no reason":
        assert error_of(record).message == "Probe.run returned None, not a FinishReason"
        assert "return FinishReason.FINISHED" in error_of(record).hint


@pytest.mark.parametrize("stage", list(Stage))
async def test_a_rollout_at_work_can_be_cancelled(
    pipeline: Pipeline, sandboxes: FakeSandboxes, stage: Stage
) -> None:
    await pipeline.submit([group(acts={stage: "hang"})])
    await Probe.started.wait()
    (record,) = await pipeline.cancel(["g.0"])
    assert record.state is RolloutState.CANCELLED
    assert not any(sandbox.running for sandbox in sandboxes.made)


async def test_rollouts_in_queues_can_be_cancelled(start: Start, sandboxes: FakeSandboxes) -> None:
    config = PipelineConfig(init_workers=2, run_workers=1, eval_workers=1, ready_rollouts=1)
    async with start(config) as pipeline:
        await pipeline.submit([group(n=10, acts={Stage.RUN: "hang"})])
        await Probe.started.wait()
        records = await pipeline.cancel([f"g.{i}" for i in range(10)])
        assert {record.state for record in records} == {RolloutState.CANCELLED}
        assert not any(sandbox.running for sandbox in sandboxes.made)
        (after,) = await ends(pipeline, group("after"))
        assert after.state is RolloutState.DONE
        assert pipeline.background.failure is None


async def test_init_and_eval_continue_while_run_is_busy(start: Start) -> None:
    config = PipelineConfig(init_workers=1, run_workers=2, eval_workers=1, ready_rollouts=4)
    async with start(config) as pipeline:
        await pipeline.submit([group("busy", acts={Stage.RUN: "hang"})])
        await Probe.started.wait()
        records = await ends(pipeline, group("rest", n=8))
        assert {record.state for record in records} == {RolloutState.DONE}
        assert (await now(pipeline, "busy.0")).state is RolloutState.RUNNING


async def test_stopping_the_pipeline_ends_all_waits_and_frees_all_sandboxes(
    start: Start, sandboxes: FakeSandboxes
) -> None:
    async with start() as pipeline:
        in_run = group("a", n=100, acts={Stage.RUN: "hang"})
        await pipeline.submit([in_run, group("b", acts={Stage.INIT: "hang"})])
        await Probe.started.wait()
        waiting = asyncio.create_task(collect(pipeline, ["b.0", *in_run.rollout_ids()]))
        await asyncio.sleep(0)
    assert await waiting == []
    assert not any(sandbox.running for sandbox in sandboxes.made)


async def test_groups_that_ended_first_are_forgotten_first_and_whole(start: Start) -> None:
    async with start(retention=Retention(keep_mb=1 / 2**20)) as pipeline:
        await pipeline.submit([group("long", acts={Stage.RUN: "hang"})])
        await Probe.started.wait()
        await ends(pipeline, group("first", n=2))
        await ends(pipeline, group("second", n=2))
        assert (await now(pipeline, "second.1")).state is RolloutState.DONE
        for rollout_id in ("first.0", "first.1"):
            with pytest.raises(NotFound):
                await pipeline.get(rollout_id)
        await pipeline.cancel(["long.0"])
        assert (await now(pipeline, "long.0")).state is RolloutState.CANCELLED


async def test_concurrent_submissions_do_not_exceed_the_limit_together(start: Start) -> None:
    async with start(max_unfinished=3) as pipeline:
        groups = [group(name, n=2, acts={Stage.RUN: "hang"}) for name in "abcd"]
        answers = await asyncio.gather(
            *(pipeline.submit([one]) for one in groups), return_exceptions=True
        )
        assert sum(isinstance(one, Overloaded) for one in answers) == 3
        assert sum(pipeline.inflight.count_by_state().values()) == 2


async def test_concurrent_submissions_are_accepted_whole_or_not_at_all(pipeline: Pipeline) -> None:
    one = pipeline.submit([group("a"), group("shared", n=1)])
    other = pipeline.submit([group("b"), group("shared", n=2)])
    results = await asyncio.gather(one, other, return_exceptions=True)
    assert [isinstance(result, Conflict) for result in results].count(True) == 1
    assert sum(pipeline.inflight.count_by_state().values()) in (2, 3)


@pytest.mark.slow
async def test_a_large_submission_is_queued_in_slices(pipeline: Pipeline) -> None:
    groups = [group(f"g{i}", n=32, acts={Stage.RUN: "hang"}) for i in range(64)]
    submissions = [asyncio.create_task(pipeline.submit(groups)) for _ in range(2)]
    counts = {0}
    while not all(one.done() for one in submissions):
        await asyncio.sleep(0)
        counts.add(sum(pipeline.inflight.count_by_state().values()))
    assert sorted(counts) == list(range(0, 64 * 32 + 1, SLICE))
    first, again = [await one for one in submissions]
    assert [one.rollout_id for one in first] == [one.rollout_id for one in again]
    assert len(again) == 64 * 32


async def test_a_handler_cancelled_from_inside_costs_its_rollout_only(start: Start) -> None:
    config = PipelineConfig(run_workers=1)
    async with start(config) as pipeline:
        (record,) = await ends(pipeline, group(acts={Stage.RUN: "cancel"}))
        assert error_of(record).blame is Blame.AGENT
        (after,) = await ends(pipeline, group("after"))
        assert after.state is RolloutState.DONE
        assert pipeline.background.failure is None


async def test_a_handler_that_swallows_cancellation_cannot_hold_up_a_shutdown(start: Start) -> None:
    async with start() as pipeline:
        await pipeline.submit([group(acts={Stage.RUN: "stubborn"})])
        await Probe.started.wait()


@pytest.mark.slow
async def test_a_run_that_waits_for_its_engine_blames_the_engine(
    start: Start, engine: StubEngine
) -> None:
    engine.latency_s = 3
    async with start() as pipeline:
        (record,) = await ends(pipeline, group(limits=Limits(run_timeout_s=1)))
    assert (error_of(record).kind, error_of(record).blame) == ("StageTimeout", Blame.BACKEND)
    assert error_of(record).retryable


@pytest.mark.slow
async def test_a_group_that_reuses_the_id_of_an_ended_one_has_its_own_lease(start: Start) -> None:
    loop_errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, error: loop_errors.append(error))
    short = group().model_copy(update={"lease_s": 0.3})
    async with start() as pipeline:
        await ends(pipeline, short)  # the stream leaves when the group has ended
        await pipeline.acknowledge(["g"])
        await pipeline.submit([group(acts={Stage.RUN: "hang"})])
        await Probe.started.wait()
        await asyncio.sleep(0.6)
        assert (await now(pipeline, "g.0")).state is RolloutState.RUNNING
    assert loop_errors == []


async def test_the_policy_is_not_sampled_after_run(start: Start) -> None:
    async with start() as pipeline:
        (record,) = await ends(pipeline, group(acts={Stage.EVAL: "sample"}))
    assert error_of(record).kind == "AgentError"
    assert len(trajectory_of(record).turns) == 1
