"""The clock of a rollout's work: the time that it counts, and the expiry of its deadlines."""

import asyncio

import pytest

from prorl_service.utils.budget import WorkClock

EARLY_S = 0.002
"""uvloop's timers have a resolution of a millisecond, and go off up to that much early."""


async def test_a_deadline_expires_by_work() -> None:
    clock = WorkClock()
    with pytest.raises(TimeoutError):
        async with clock.deadline(0.05) as deadline:
            await asyncio.Event().wait()
    assert deadline.expired()
    assert clock.worked_s >= 0.05 - EARLY_S
    assert clock.waited_s == 0.0


async def test_waiting_counts_against_no_deadline() -> None:
    clock = WorkClock()
    async with clock.deadline(0.2), clock.deadline(0.2):
        with clock.waiting():
            await asyncio.sleep(0.4)
        before_s = clock.waited_s
        assert before_s >= 0.4 - EARLY_S
        await asyncio.sleep(0.01)
        assert clock.waited_s == before_s
        assert 0.01 - EARLY_S <= clock.worked_s < 0.2


async def test_a_wait_leaves_the_rest_of_a_deadline_as_it_was() -> None:
    clock = WorkClock()

    async def wait_and_work() -> None:
        async with clock.deadline(0.1):
            with clock.waiting():
                await asyncio.sleep(0.2)
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await wait_and_work()
    assert clock.worked_s >= 0.1 - EARLY_S


async def test_overlapping_waits_end_with_the_last() -> None:
    clock = WorkClock()
    async with clock.deadline(0.2):
        clock.stop()
        with clock.waiting():
            pass
        await asyncio.sleep(0.4)
        clock.start()
    assert clock.worked_s < 0.2


async def test_a_wait_that_begins_or_ends_with_the_deadline_does_not_put_it_off() -> None:
    """The timer has gone off, but its task has not been resumed yet."""
    clock = WorkClock()
    loop = asyncio.get_running_loop()

    async def work() -> None:
        async with clock.deadline(0.05):
            loop.call_later(0.05, clock.stop)
            loop.call_later(0.05, clock.start)
            await asyncio.Event().wait()

    async with asyncio.timeout(30):
        with pytest.raises(TimeoutError):
            await work()


async def test_a_cancelled_wait_ends() -> None:
    clock = WorkClock()

    async def wait() -> None:
        with clock.waiting():
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    before_s = clock.worked_s
    await asyncio.sleep(0.01)
    assert clock.worked_s > before_s


async def test_refunded_work_counts_as_waiting() -> None:
    clock = WorkClock()
    async with clock.deadline(0.3):
        for _ in range(3):
            began_s = clock.worked_s
            await asyncio.sleep(0.15)
            clock.refund(began_s)
    assert clock.worked_s < 0.15
    assert clock.waited_s >= 0.45 - 3 * EARLY_S


async def test_a_deadline_can_be_extended() -> None:
    clock = WorkClock()
    async with clock.deadline(0.05) as outer:
        clock.extend(30)
        assert clock.left_s > 29
        with pytest.raises(TimeoutError):
            async with clock.deadline(0.1):
                await asyncio.Event().wait()
        assert not outer.expired()
