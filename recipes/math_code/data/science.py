"""Converters for rows of data sets with science questions. The published solutions are texts: a
short answer is taken only where one is set apart, never searched for."""

import re

from prorl_service.rewards.math import boxed
from recipes.common.data.fields import Row
from recipes.math_code.data.questions import check_asked, has_parts, named
from recipes.math_code.rows import StemProblem

MAX_ANSWER_CHARS = 200
"""Length of the longest short answer; longer ones are texts, which no rule compares."""

_AGREES = re.compile(r"is_(\w+_solution)_same_with_matched_solution")


def from_scp(row: Row) -> StemProblem:
    """Converts a row of SCP-116K. Raises `RowError`."""
    question = row.text("problem").strip()
    check_asked(row, question)
    if has_parts(question):
        raise row.error("the problem has parts, or options in its text")
    return StemProblem(
        problem_id=named("scp_116k", question),
        source=f"scp_116k/{row.text('domain')}",
        question=question,
        answer=_answer(row),
    )


def _answer(row: Row) -> str:
    """Returns the box of the matched solution, else of a model's solution found to agree with
    it."""
    matched = row.text("matched_solution")
    if matched.count("\\boxed") > 1:
        raise row.error("the solution has several boxes")
    answer = boxed(matched) or next(filter(None, map(boxed, _agreeing(row))), None)
    if answer is None:
        raise row.error("no solution has its answer in a box")
    if len(answer) > MAX_ANSWER_CHARS:
        raise row.error("the answer is not short", answer[:80])
    return answer


def _agreeing(row: Row) -> list[str]:
    """Returns solutions of models that the publisher's judge found to agree."""
    solutions = []
    for field, value in sorted(row.fields.items()):
        match = _AGREES.fullmatch(field)
        if match is not None and value is True and row.has(match[1]):
            solutions.append(row.text(match[1]))
    return solutions
