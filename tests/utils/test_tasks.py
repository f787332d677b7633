import asyncio

import pytest

from prorl_service.utils.tasks import wait_uncancelled


async def work(ended: list[str], problem: Exception | None = None) -> str:
    await asyncio.sleep(0.05)
    ended.append("work")
    if problem is not None:
        raise problem
    return "result"


async def test_the_result_or_the_error_of_the_work_is_the_callers() -> None:
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


async def test_a_time_limit_is_told_as_one() -> None:
    ended: list[str] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await wait_uncancelled(asyncio.create_task(work(ended)))
    assert ended == ["work"]
