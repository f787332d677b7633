"""The scoring rule for mathematics, over the shared table of tricky pairs."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from prorl_service.agents.answers import NEVER_HOSTILE
from prorl_service.errors import EvaluatorError
from prorl_service.rewards.math import boxed, is_expression, score_math
from prorl_service.rewards.pool import ScoringAborted, ScoringPool
from tests.rewards.hostile import HOSTILE_ANSWERS, HostileAnswer
from tests.rewards.math_table import ERRORS, TABLE, MathRow

pytestmark = pytest.mark.processes

CPU_S = 2


@pytest.fixture(scope="module")
def pool() -> Iterator[ScoringPool]:
    scoring = ScoringPool(cpu_s=CPU_S)
    yield scoring
    asyncio.run(scoring.close())


@pytest.mark.parametrize("row", [*TABLE, *ERRORS], ids=lambda row: row.name)
async def test_tricky_pairs_score_as_in_the_table(pool: ScoringPool, row: MathRow) -> None:
    answer = boxed(row.reply)
    assert (answer is not None and await scored(pool, answer, row.gold)) == row.score


async def scored(pool: ScoringPool, answer: str, gold: str) -> float:
    """Scores as the agent does: an answer that cannot be scored is wrong."""
    try:
        return await pool.score(score_math, 60, answer, gold)
    except ScoringAborted:
        return 0.0


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{4}", "4"),
        (r"\boxed {4}", "4"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and \boxed{ 2 }", "2"),
        (r"\boxed{\boxed{1}, 2}", r"\boxed{1}, 2"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"} } \boxed{1}", "1"),
        (r"{ \boxed{1}", "1"),
        (r"the answer goes into \boxed{ like this: \boxed{1}", "1"),
        (r"\boxed{1} or rather \boxed{2", None),
        (r"\boxed{ {1}", None),
        (r"\boxed{1\}", None),
        ("boxed{1}", None),
        ("", None),
    ],
)
def test_the_answer_is_the_content_of_the_last_box(text: str, content: str | None) -> None:
    assert boxed(text) == content


@given(st.text(alphabet="\\{}boxed 1", max_size=60), st.text(alphabet="abc \\{}", max_size=20))
def test_text_before_the_last_box_does_not_count(before: str, content: str) -> None:
    assume(boxed(f"\\boxed{{{content}}}") == content)
    assume(not content.endswith("\\") and not before.endswith("\\"))
    assert boxed(f"{before}\\boxed{{{content}}}") in (content, boxed(before + content))


READ_TWICE = """
from prorl_service.rewards import math
mended = [math._parsed(text) for text in TEXTS]
from math_verify import parser
parser.parse_latex_cached.cache_clear()
parser.extract_latex.cache_clear()
from prorl_service.rewards import latex
class Full:
    SLL = LL = latex.PredictionMode.LL
latex.PredictionMode = Full
assert [math._parsed(text) for text in TEXTS] == mended
"""


def test_the_quick_parser_reads_what_the_full_one_reads() -> None:
    """Runs in a separate process, because it changes the parser for good."""
    replies = [row.reply for row in [*TABLE, *ERRORS] if "!" not in row.reply]
    texts = [row.gold for row in TABLE] + [boxed(reply) or reply for reply in replies]
    source = READ_TWICE.replace("TEXTS", repr(texts))
    subprocess.run([sys.executable, "-W", "ignore", "-c", source], check=True, timeout=240)


@pytest.mark.parametrize("gold", ["$42$", "$$42$$", r"\(42\)", r"\[42\]", " $ 42 $ "])
async def test_gold_may_have_delimiters(pool: ScoringPool, gold: str) -> None:
    assert await pool.score(score_math, 60, "42.0", gold) == 1.0
    assert await pool.score(score_math, 60, "43", gold) == 0.0


@pytest.mark.parametrize("gold", ["}{", "$", "   "])
@pytest.mark.parametrize("answer", ["42", "x"])
async def test_unreadable_gold_is_the_evaluators_failure(
    pool: ScoringPool, answer: str, gold: str
) -> None:
    with pytest.raises(EvaluatorError, match="gold") as caught:
        await pool.score(score_math, 60, answer, gold)
    assert not isinstance(caught.value, ScoringAborted)


@pytest.mark.parametrize("hostile", HOSTILE_ANSWERS, ids=lambda hostile: hostile.name)
@pytest.mark.sampled(5)
async def test_hostile_answers_are_wrong_and_harm_nobody(
    pool: ScoringPool, hostile: HostileAnswer
) -> None:
    answer = boxed(hostile.reply)
    assert not (answer is not None and await scored(pool, answer, hostile.gold))
    assert await pool.score(score_math, 60, r"\frac{2}{4}", "0.5") == 1.0
    # Another answer can be scored against the gold, so the gold is not to blame.
    assert await pool.score(score_math, 60, NEVER_HOSTILE, hostile.gold) == 0.0


@pytest.mark.parametrize(
    ("gold", "expected"),
    [(r"\frac{1}{2}", 1.0), (r"\text{even}", 1.0), (r"2n + 1, n \in \mathbb{N}", 0.0), ("?", 0.0)],
)
async def test_gold_that_is_read_only_as_text_is_no_expression(
    pool: ScoringPool, gold: str, expected: float
) -> None:
    assert await pool.score(is_expression, 60, gold) == expected
