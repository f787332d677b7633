"""The processes that scoring runs in: what ends them, who is blamed, what it costs others."""

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest

from prorl_service.errors import EvaluatorError
from prorl_service.rewards.pool import ScoringAborted, ScoringPool

pytestmark = pytest.mark.processes

MEMORY_MB = 512


@pytest.fixture
async def pool() -> AsyncIterator[ScoringPool]:
    scoring = ScoringPool(workers=1, memory_mb=MEMORY_MB, cpu_s=1)
    yield scoring
    await scoring.close()


def loop() -> float:
    while True:
        pass


def loop_in_c() -> float:
    """Loops without a step of the interpreter, so that Python handles no signal."""
    return float(len(str(7 ** (10**9))))


def die() -> float:
    os._exit(3)


def crash() -> float:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 1.0


def swallow_memory() -> float:
    return float(len(bytearray(1 << 40)))


@pytest.mark.parametrize("scorer", [loop, loop_in_c, die, crash, swallow_memory])
async def test_a_call_is_blamed_for_what_it_does_to_its_worker(
    pool: ScoringPool, scorer: type
) -> None:
    with pytest.raises(ScoringAborted):
        await pool.score(scorer, 60)
    assert await pool.score(float, 60, 1) == 1.0


def sleep() -> float:
    time.sleep(3600)
    return 1.0


def be_killed() -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def fail() -> float:
    raise LookupError("no such thing")


@pytest.mark.parametrize(
    ("scorer", "timeout_s", "message"),
    [
        (sleep, 0.2, "more than 0.2 s"),
        (be_killed, 60, "was killed"),
        (fail, 60, "LookupError.*no such thing"),
    ],
)
async def test_timeouts_kills_and_bugs_are_not_blamed_on_the_call(
    pool: ScoringPool, scorer: type, timeout_s: float, message: str
) -> None:
    with pytest.raises(EvaluatorError, match=message) as caught:
        await pool.score(scorer, timeout_s)
    assert not isinstance(caught.value, ScoringAborted)
    assert await pool.score(float, 60, 1) == 1.0


async def test_only_the_hostile_calls_of_many_are_lost(pool: ScoringPool) -> None:
    functions = [die if number % 7 == 3 else float for number in range(48)]
    calls = (pool.score(function, 60) for function in functions)
    results = await asyncio.gather(*calls, return_exceptions=True)
    expected = [ScoringAborted if function is die else float for function in functions]
    assert [type(result) for result in results] == expected


async def test_a_worker_killed_while_idle_costs_no_call(pool: ScoringPool) -> None:
    assert await pool.score(float, 60, 1) == 1.0
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()
    assert await pool.score(float, 60, 2) == 2.0


_hoard: list[bytearray] = []


def hoard(megabytes: int) -> float:
    """Keeps memory, as caches do."""
    _hoard.append(bytearray(b"x") * (megabytes << 20))
    return float(len(_hoard))


async def test_memory_that_calls_leave_behind_costs_no_later_call(pool: ScoringPool) -> None:
    third = MEMORY_MB // 3
    calls = (pool.score(hoard, 60, third) for _ in range(6))
    assert sorted(await asyncio.gather(*calls)) == [1, 1, 1, 2, 2, 2]


async def test_cancelled_calls_do_not_run_and_delay_no_others(pool: ScoringPool) -> None:
    running = asyncio.create_task(pool.score(loop, 60))
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(pool.score(loop, 60)) for _ in range(20)]
    await asyncio.sleep(0)
    for task in (running, *waiting):
        task.cancel()
    assert await pool.score(float, 60, 1) == 1.0


def test_a_pool_serves_one_event_loop_after_another() -> None:
    scoring = ScoringPool(workers=1)
    assert asyncio.run(scoring.score(float, 60, 1)) == 1.0
    assert asyncio.run(scoring.score(float, 60, 2)) == 2.0
    asyncio.run(scoring.close())
