"""Checks that gold answers can be scored at all, before a rollout is spent on them.

Checks run in processes with limits: a comparison that never ends costs seconds here, too. Findings
are kept in a file, so that a repeated preparation continues where it was.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from prorl_service.agents.answers import NEVER_HOSTILE
from prorl_service.errors import EvaluatorError
from prorl_service.rewards.math import is_expression, score_math
from prorl_service.rewards.pool import ScoringAborted, ScoringPool
from prorl_service.rewards.stem import normal_text, score_value
from recipes.math_code.rows import (
    CodeProblem,
    MathProblem,
    Problem,
    ReasoningProblem,
    StemProblem,
)

TIMEOUT_S = 90.0
"""Wall-clock limit for work that has 5 s of CPU time."""
TRIES = 3
"""Attempts at a check while the host is to blame."""


class Golds:
    """Findings about gold answers. Owns the pool and the file: one per version of math-verify."""

    def __init__(self, workers: int, directory: Path) -> None:
        self._pool = ScoringPool(workers=workers)
        self._file = directory / f"answers-{version('math-verify')}.jsonl"
        self._found = _read(self._file)

    async def close(self) -> None:
        await self._pool.close()

    async def fault(self, problem: Problem) -> str:
        """Returns why no answer to the problem can be scored; empty if some can. Raises
        `EvaluatorError` if the host prevents the check."""
        if isinstance(problem, CodeProblem | ReasoningProblem) or (
            isinstance(problem, StemProblem) and problem.options
        ):
            return ""
        scorer = equals_itself if isinstance(problem, MathProblem) else compares
        key = (problem.kind, problem.answer)
        if key not in self._found:
            self._found[key] = await self._fault(scorer, problem.answer)
            with self._file.open("a") as file:
                file.write(json.dumps([*key, self._found[key]]) + "\n")
        return self._found[key]

    async def _fault(self, scorer: Callable[[str], float], gold: str) -> str:
        try:
            equal = await self._score(scorer, gold)
        except ScoringAborted:
            return "the answer cannot be compared in time"
        except EvaluatorError as error:
            if error.retryable:
                raise
            return "math-verify cannot read the answer"
        return "" if equal else "math-verify does not find the answer equal to itself"

    async def same(self, problem: Problem, gold: str) -> bool:
        """Returns whether the problem's answer equals `gold`, the same question's answer elsewhere.
        Tests of programs are not compared."""
        answer = answer_of(problem)
        if normal_text(answer) == normal_text(gold):
            return True
        scorer = score_math if isinstance(problem, MathProblem) else score_value
        try:
            return bool(await self._score(scorer, answer, gold))
        except EvaluatorError as error:
            if error.retryable:
                raise
            return False

    async def _score(self, scorer: Callable[..., float], *answers: str) -> float:
        for _ in range(TRIES - 1):
            try:
                return await self._pool.score(scorer, TIMEOUT_S, *answers)
            except EvaluatorError as error:
                if not error.retryable:
                    raise
        return await self._pool.score(scorer, TIMEOUT_S, *answers)


def _read(file: Path) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for line in file.read_text().split("\n") if file.exists() else ():
        with suppress(ValueError):  # the last line may be cut off
            kind, answer, fault = json.loads(line)
            found[kind, answer] = fault
    return found


def answer_of(problem: Problem) -> str:
    """Returns the gold answer; empty for programs and puzzles, which have verifiers."""
    return "" if isinstance(problem, CodeProblem | ReasoningProblem) else problem.answer


def equals_itself(gold: str) -> float:
    """Returns 1.0 if the answer does. Raises `ValueError` if only its exact text would be right."""
    if not score_math(gold, gold):
        return 0.0
    if not is_expression(gold):
        raise ValueError("it is only text")
    score_math(NEVER_HOSTILE, gold)  # as the service does where an answer cannot be scored
    return 1.0


def compares(gold: str) -> float:
    """Returns 1.0 if the comparison ends: that the answer equals itself is decided by its text."""
    score_value(NEVER_HOSTILE, gold)
    return 1.0
