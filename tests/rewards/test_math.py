import asyncio
import os
import time
from collections.abc import Iterator

import pytest

from prorl_service.errors import EvaluatorError
from prorl_service.rewards.math import score_math
from prorl_service.rewards.pool import ScoringPool


@pytest.fixture(scope="module")
def pool() -> Iterator[ScoringPool]:
    scoring = ScoringPool()
    yield scoring
    asyncio.run(scoring.close())


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("The answer is \\boxed{42}.", "42", 1.0),
        ("42", "42", 1.0),
        ("0.5", "\\frac{1}{2}", 1.0),
        ("\\boxed{x^2 + 2x + 1}", "(x+1)^2", 1.0),
        ("It is 41.", "42", 0.0),
        ("", "42", 0.0),
        ("I do not know.", "42", 0.0),
    ],
)
async def test_verdicts(pool: ScoringPool, answer: str, gold: str, score: float) -> None:
    assert await pool.score(score_math, 30, answer, gold) == score


async def test_unreadable_gold_is_the_evaluators_failure(pool: ScoringPool) -> None:
    with pytest.raises(EvaluatorError, match="gold"):
        await pool.score(score_math, 30, "42", "}{")


def hang() -> float:
    time.sleep(3600)
    return 1.0


def die() -> float:
    os._exit(3)


def swallow_memory() -> float:
    return float(len(bytearray(1 << 40)))


@pytest.mark.parametrize("scorer", [hang, die, swallow_memory])
async def test_a_hostile_answer_costs_one_verdict_not_the_pool(
    pool: ScoringPool, scorer: type
) -> None:
    with pytest.raises(EvaluatorError):
        await pool.score(scorer, 1)
    assert await pool.score(score_math, 30, "42", "42") == 1.0
