"""A problem with ways to answer it, right and wrong: what demonstrations are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from recipes.math_code.rows import Problem


@dataclass(frozen=True, slots=True)
class Attempt:
    """One tool call, what the tool answers, and the reply that ends the rollout."""

    tool: str
    arguments: Mapping[str, Any]
    output: str
    reply: str


@dataclass(frozen=True, slots=True)
class Example:
    """`right` earns a reward of 1, none of `wrong` does; of those the most usual comes first."""

    problem: Problem
    right: Attempt
    wrong: tuple[Attempt, ...]

    @classmethod
    def of(cls, problem: Problem, attempts: Sequence[Attempt], right: int) -> Self:
        """`right`: index of the right one. Its successor, around the end, is the usual mistake: so
        each family has its own, and who imitates them has to tell the families apart."""
        return cls(problem, attempts[right], (*attempts[right + 1 :], *attempts[:right]))
