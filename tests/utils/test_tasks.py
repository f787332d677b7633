import asyncio
import gc
import logging

import pytest

from prorl_service.errors import SandboxError
from prorl_service.utils.tasks import Changes, TaskOwner, wait_uncancelled


async def work(ended: list[str], problem: Exception | None = None) -> str:
    await asyncio.sleep(0.05)
    ended.append("work")
    if problem is not None:
        raise problem
    return "result"


async def test_the_caller_gets_the_result_or_the_error_of_the_work() -> None:
    assert await wait_uncancelled(asyncio.create_task(work([]))) == "result"
    with pytest.raises(ValueError, match="no luck"):
        await wait_uncancelled(asyncio.create_task(work([], ValueError("no luck"))))


@pytest.mark.parametrize("problem", [None, ValueError("no luck")])
async def test_a_caller_cancelled_again_and_again_leaves_after_the_work(
    problem: Exception | None,
) -> None:
    ended: list[str] = []

    async def caller() -> None:
        try:
            await wait_uncancelled(asyncio.create_task(work(ended, problem)))
        finally:
            ended.append("caller")

    waiting = asyncio.create_task(caller())
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["work", "caller"]


async def test_a_time_limit_is_reported_as_a_timeout() -> None:
    ended: list[str] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await wait_uncancelled(asyncio.create_task(work(ended)))
    assert ended == ["work"]


# --- owned tasks --------------------------------------------------------------------------------


async def fail(error: BaseException) -> None:
    raise error


async def hang(ended: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("hang")


@pytest.fixture
async def owner() -> TaskOwner:
    return TaskOwner()


@pytest.mark.parametrize("error", [ValueError("no luck"), SandboxError("no luck")])
async def test_a_long_lived_task_that_ends_is_a_failure(
    owner: TaskOwner, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.wait([owner.start(fail(error), name="worker")])
    assert owner.failure is not None
    assert "background task worker ended" in owner.failure
    assert "no luck" in owner.failure
    (record,) = caplog.records
    assert record.levelno == logging.CRITICAL
    assert bool(record.exc_info) == isinstance(error, ValueError)


async def test_work_that_runs_once_gives_its_result(
    owner: TaskOwner, caplog: pytest.LogCaptureFixture
) -> None:
    assert await owner.run_once(work([]), name="work") == "result"
    assert owner.failure is None
    assert caplog.records == []


@pytest.mark.slow
async def test_work_that_runs_once_is_kept_until_it_has_ended(owner: TaskOwner) -> None:
    ended: list[str] = []
    owner.run_once(work(ended), name="work")
    gc.collect()
    await owner.drain()
    assert ended == ["work"]


@pytest.mark.parametrize("error", [ValueError("no luck"), SandboxError("no luck")])
async def test_only_an_unexpected_error_of_work_that_runs_once_is_a_failure(
    owner: TaskOwner, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    owner.run_once(work([], error), name="work")
    await owner.drain()
    (record,) = caplog.records
    if isinstance(error, ValueError):
        assert owner.failure == "background task work failed: ValueError('no luck')"
        assert record.levelno == logging.CRITICAL
        assert record.exc_info
        assert record.exc_info[0] is ValueError
    else:
        assert owner.failure is None
        assert record.levelno == logging.WARNING
        assert record.getMessage() == "background task work failed: no luck"


async def test_work_that_runs_once_may_be_cancelled(
    owner: TaskOwner, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []
    task = owner.run_once(hang(ended), name="work")
    await asyncio.sleep(0)
    task.cancel()
    await owner.drain()
    assert ended == ["hang"]
    assert owner.failure is None
    assert caplog.records == []


async def test_close_cancels_all_tasks_and_waits_for_them(owner: TaskOwner) -> None:
    ended: list[str] = []
    owner.start(hang(ended), name="worker")
    owner.run_once(hang(ended), name="work")
    await asyncio.sleep(0)
    await owner.close()
    assert ended == ["hang", "hang"]
    assert owner.failure is None


async def test_an_error_of_work_that_is_cancelled_by_close_is_noticed(owner: TaskOwner) -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("no luck")

    owner.run_once(stubborn(), name="work")
    await asyncio.sleep(0)
    await owner.close()
    assert owner.failure == "background task work failed: ValueError('no luck')"


async def test_close_and_drain_wait_for_work_that_work_begins(owner: TaskOwner) -> None:
    ended: list[str] = []

    async def begin() -> None:
        try:
            await asyncio.sleep(0.01)
        finally:
            owner.run_once(hang(ended) if is_closing else work(ended), name="later")

    is_closing = False
    owner.run_once(begin(), name="first")
    await owner.drain()
    assert ended == ["work"]
    is_closing = True
    owner.run_once(begin(), name="first")
    await asyncio.sleep(0)
    await owner.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_task_that_its_caller_leaves_is_adopted(owner: TaskOwner) -> None:
    task = asyncio.create_task(work([], ValueError("no luck")), name="left")
    owner.adopt(task)
    await owner.drain()
    assert owner.failure == "background task left failed: ValueError('no luck')"


# --- changes ------------------------------------------------------------------------------------


async def test_a_change_wakes_waiting_tasks_and_leaves_later_ones_waiting() -> None:
    changes = Changes()
    waiting = [asyncio.create_task(changes.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    changes.notify()
    await asyncio.wait(waiting)
    late = asyncio.create_task(changes.wait())
    await asyncio.sleep(0.01)
    assert not late.done()
    changes.notify()
    await late


async def test_no_change_is_missed_between_looks() -> None:
    changes, values, seen = Changes(), [0], [0]

    async def watch() -> None:
        while seen[-1] < 9:
            while values[-1] == seen[-1]:
                await changes.wait()
            seen.append(values[-1])

    watching = asyncio.create_task(watch())
    for value in range(1, 10):
        values.append(value)
        changes.notify()
        if value % 2:
            await asyncio.sleep(0)
    await watching
    assert seen[-1] == 9


async def test_what_fails_at_one_group_is_logged_and_no_failure(
    owner: TaskOwner, caplog: pytest.LogCaptureFixture
) -> None:
    task = owner.run_once(fail(OverflowError("x" * 100_000)), name="submit group g", of_one=True)
    await asyncio.wait([task])
    assert owner.failure is None
    (line,) = caplog.messages
    assert line.startswith("background task submit group g failed: OverflowError")
    assert len(line) < 1000
