"""Checks of gold answers in real worker processes, even when others kill these."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from prorl_service.errors import EvaluatorError
from recipes.math_code.data.golds import TRIES, Golds
from recipes.math_code.rows import MathProblem, StemProblem

pytestmark = pytest.mark.processes

HOSTILE = "9^{9^{9}}"
BUSY_S = 2.0
"""CPU seconds after which a worker has surely begun the call but not yet finished it."""


OTHERS: set[int] = set()
"""Child processes that other tests share."""


@pytest.fixture
async def golds(tmp_path: Path) -> AsyncIterator[Golds]:
    OTHERS.update(child.pid for child in psutil.Process().children())
    golds = Golds(1, tmp_path)
    yield golds
    await golds.close()


def mathematics(answer: str) -> MathProblem:
    return MathProblem(problem_id="m", source="test", question="?", answer=answer)


def science(answer: str) -> StemProblem:
    return StemProblem(problem_id="s", source="test", question="?", answer=answer)


async def kill_workers(times: int) -> None:
    """Kills busy workers; the pool has to notice that they ended."""
    killed: set[int] = set()
    while len(killed) < times:
        await asyncio.sleep(0.05)
        for child in psutil.Process().children():
            if child.pid not in killed | OTHERS and sum(child.cpu_times()[:2]) > BUSY_S:
                child.kill()
                killed.add(child.pid)


async def test_a_worker_killed_by_others_costs_nothing(golds: Golds) -> None:
    fault, _ = await asyncio.gather(golds.fault(mathematics(HOSTILE)), kill_workers(1))
    assert fault == "the answer cannot be compared in time"


async def test_repeated_kills_by_the_host_are_a_retryable_error(golds: Golds) -> None:
    killing = asyncio.create_task(kill_workers(TRIES))
    with pytest.raises(EvaluatorError, match="was killed") as error:
        await golds.fault(mathematics(HOSTILE))
    await killing
    assert error.value.retryable
    assert await golds.fault(mathematics("\\sqrt{2}")) == ""


async def test_short_answers_may_be_text_but_must_be_comparable_in_time(
    golds: Golds,
) -> None:
    assert await golds.fault(science("2n+1, n \\in \\mathbb{N}")) == ""
    assert await golds.fault(science(HOSTILE)) == "the answer cannot be compared in time"


async def test_answers_are_the_same_if_the_agents_rule_says_so(golds: Golds) -> None:
    assert await golds.same(mathematics("0.5"), "\\frac{1}{2}")
    assert not await golds.same(mathematics("0.5"), "\\frac{1}{3}")
    assert not await golds.same(mathematics("0.5"), "}{")
    assert await golds.same(science("\\text{Iron}"), "iron")
    assert await golds.same(science("5 \\text{ m}"), "5.0")
    assert not await golds.same(science("5 \\text{ m}"), "5 \\text{ km}")
