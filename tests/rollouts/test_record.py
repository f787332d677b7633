"""The end of a rollout: once, and after its answer is in the journal."""

from collections.abc import AsyncIterator

import pytest

from prorl_service.resume.rows import SavedRollout
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.rollouts.journal.tables import AcceptedRow, EndedRow, UnfinishedGroup
from prorl_service.rollouts.observers import Observer
from prorl_service.rollouts.record import (
    UNWRITABLE,
    Admitted,
    EndedRollout,
    IllegalMove,
    RolloutRecord,
)
from prorl_service.sampling.candidates import Candidate
from prorl_service.schemas import (
    Blame,
    ErrorInfo,
    FinishReason,
    Group,
    Message,
    Rollout,
    RolloutState,
    Sampling,
    Trajectory,
)
from tests import builders

PROBLEM = ErrorInfo(kind="TaskError", blame=Blame.TASK, message="no such file")


class Told(Observer):
    def __init__(self, told: list[object]) -> None:
        self.told = told

    def moved(self, record: RolloutRecord) -> None:
        self.told.append(record.state)

    def ended(self, record: RolloutRecord, row: EndedRow) -> None:
        self.told.append(row.rollout_id)


@pytest.fixture
async def record() -> AsyncIterator[RolloutRecord]:
    group = Group(group_id="g", task=builders.task())
    async with Journal() as journal:
        await journal.accept([AcceptedRow("g", group.n, b"{}", 1.0)])
        yield RolloutRecord(Admitted(group), 0, journal)


def move_to_eval(record: RolloutRecord) -> None:
    for state in ("init", "ready", "running", "evaluating"):
        record.move(RolloutState(state))


async def test_watchers_are_called_when_the_end_is_written(record: RolloutRecord) -> None:
    ended: list[Rollout] = []
    record.watch(lambda one: ended.append(one.to_wire()))
    written = record.end(RolloutState.FAILED, PROBLEM)
    assert (record.state, ended) == (RolloutState.QUEUED, [])
    assert record.to_wire().error is None
    await written
    assert [(one.state, one.error) for one in ended] == [(RolloutState.FAILED, PROBLEM)]
    assert await record.journal.read(tables.answer, "g.0") is not None


async def test_the_last_move_is_told_first_and_the_end_after_the_callers(
    record: RolloutRecord,
) -> None:
    told: list[object] = []
    record.observer = Told(told)
    record.watch(lambda one: told.append("a caller"))
    move_to_eval(record)
    told.clear()
    written = record.end(RolloutState.FAILED, PROBLEM)
    assert not told
    await written
    assert told == [RolloutState.FAILED, "a caller", "g.0"]


async def test_a_rollout_ends_once(record: RolloutRecord) -> None:
    written = record.end(RolloutState.CANCELLED)
    for _ in range(2):
        with pytest.raises(IllegalMove):
            record.end(RolloutState.FAILED, PROBLEM)
        await written


@pytest.mark.parametrize("state", [RolloutState.DONE, RolloutState.INIT])
async def test_only_a_legal_end_is_accepted(record: RolloutRecord, state: RolloutState) -> None:
    with pytest.raises(IllegalMove):
        record.end(state)
    assert record.outcome is None


async def test_an_answer_that_is_not_json_becomes_a_failure_without_a_result(
    record: RolloutRecord,
) -> None:
    move_to_eval(record)
    odd = record.to_wire().model_copy(update={"state": RolloutState.DONE})
    odd.oldest_policy_version, odd.reward, odd.report = 3, 1.0, {"text": "\ud800"}
    await record.finish(odd)
    ended = record.to_wire()
    assert (ended.state, ended.reward, ended.oldest_policy_version) == (
        RolloutState.FAILED,
        None,
        3,
    )
    assert ended.error is not None
    assert ended.error.kind == UNWRITABLE


async def test_only_the_first_reason_of_a_cancellation_counts(record: RolloutRecord) -> None:
    record.request_cancel(PROBLEM)
    record.request_cancel()
    assert record.cancel_reason == PROBLEM


async def test_a_watcher_that_raises_costs_the_others_nothing(
    record: RolloutRecord, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[object] = []

    def fail(*_: object) -> None:
        raise OverflowError("intermediate overflow " + "x" * 100_000)

    record.observer = Told(told)
    for watcher in (fail, lambda one: told.append("a caller"), fail):
        record.watch(watcher)
    await record.end(RolloutState.FAILED, PROBLEM)
    record.watch(fail)
    assert told == [RolloutState.FAILED, "a caller", "g.0"]
    lines = [one.getMessage() for one in caplog.records]
    assert len(lines) == 3
    assert all("g.0" in line and len(line) < 1000 for line in lines)
    assert not any(one.exc_info for one in caplog.records)


async def test_what_a_log_shows_of_rollouts_is_short(record: RolloutRecord) -> None:
    many, long = list(range(50_000)), "x" * 99_999
    segment = builders.segment([1] * len(many), prompt_ids=many)
    turn = builders.turn(stop=9, text=long)
    messages = [Message(role="user", content=long)]
    task = builders.task(messages=messages, data={"x": long})
    group = Group(group_id="g", task=task)
    trajectory = Trajectory(
        segments=[segment], turns=[turn], finish_reason=FinishReason.FINISHED, sampling=Sampling()
    )
    record.admitted = Admitted(group, prompt_ids=tuple(many))
    rollout = record.to_wire()
    rollout.trajectory, rollout.report = trajectory, {"x": long}
    content = rollout.model_dump_json().encode()
    shown = [
        *(record, record.admitted, Candidate(group), group, segment, trajectory, rollout),
        *(
            EndedRow("g.0", "g", 1, RolloutState.DONE, content, content),
            UnfinishedGroup(content, 0),
        ),
        *(EndedRollout(content, content), AcceptedRow("g", 1, content, 0)),
        SavedRollout("g.0", 1, {0: content}, content),
    ]
    assert [type(one) for one in shown if len(repr(one)) > 2000] == []
