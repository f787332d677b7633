"""The state of one attempt, and the answer that a rollout ends with after it."""

import asyncio

import pytest

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.inference.session import RolloutSession
from prorl_service.pipeline.execution import Execution
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.record import Admitted, RolloutRecord
from prorl_service.schemas import FinishReason, Rollout, RolloutState
from prorl_service.testing import ScriptedGenerator
from prorl_service.tokens.chat import ChatFormat
from tests.agents.attempts import attempt_of
from tests.pipeline.probe_agent import Probe, group


@pytest.fixture
def execution(chat: ChatFormat) -> Execution:
    task = group().task
    attempt = attempt_of(chat, ScriptedGenerator.of_texts(["Yes."], chat), task=task)
    session = RolloutSession.__new__(RolloutSession)
    return Execution(Probe(task), RolloutContext(attempt), session)


def result(record: RolloutRecord, execution: Execution, state: RolloutState) -> Rollout:
    return execution.add_result(record.to_wire().model_copy(update={"state": state}))


@pytest.fixture
def record() -> RolloutRecord:
    return RolloutRecord(Admitted(group()), 0, Journal.__new__(Journal))


async def test_an_answer_has_the_sampled_tokens_and_once_done_the_reward(
    execution: Execution, record: RolloutRecord
) -> None:
    await execution.context.sample(execution.context.prompt_ids)
    execution.finish_reason = FinishReason.FINISHED
    execution.verdict = Verdict(1, {"part": 0.5}, {"note": "good"})
    done = result(record, execution, RolloutState.DONE)
    cancelled = result(record, execution, RolloutState.CANCELLED)
    assert (done.reward, done.reward_components, done.report) == (
        1,
        {"part": 0.5},
        {"note": "good"},
    )
    assert (cancelled.reward, cancelled.report) == (None, None)
    assert done.trajectory is not None
    assert done.trajectory.finish_reason is FinishReason.FINISHED
    assert done.trajectory == cancelled.trajectory
    oldest, newest = min(execution.attempt.ledger.versions), max(execution.attempt.ledger.versions)
    for one in (done, cancelled):
        assert (one.oldest_policy_version, one.newest_policy_version) == (oldest, newest)


async def test_turns_have_rewards_once_the_rollout_is_done(
    execution: Execution, record: RolloutRecord
) -> None:
    await execution.context.sample(execution.context.prompt_ids)
    execution.verdict = Verdict(1, turn_rewards={0: 0.5})
    for state, expected in ((RolloutState.CANCELLED, None), (RolloutState.DONE, 0.5)):
        trajectory = result(record, execution, state).trajectory
        assert trajectory is not None
        assert [turn.reward for turn in trajectory.turns] == [expected]


async def test_an_attempt_without_a_turn_has_no_trajectory(
    execution: Execution, record: RolloutRecord
) -> None:
    answer = result(record, execution, RolloutState.FAILED)
    assert (answer.trajectory, answer.oldest_policy_version) == (None, None)


async def test_a_release_continues_when_its_caller_is_cancelled(execution: Execution) -> None:
    may_close, closed = asyncio.Event(), asyncio.Event()

    async def close() -> None:
        await may_close.wait()
        closed.set()

    execution.attempt.resources.push_async_callback(close)
    first = asyncio.create_task(execution.attempt.release())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    may_close.set()
    await execution.attempt.release()
    assert closed.is_set()


async def test_a_release_that_fails_raises_nothing(
    execution: Execution, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise OSError("no such process")

    execution.attempt.resources.push_async_callback(fail)
    await execution.attempt.release()
    assert "rollout g.0: releasing its resources failed" in caplog.text
