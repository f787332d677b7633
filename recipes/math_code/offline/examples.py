"""Problems with ways to answer them, right and wrong, from which demonstrations are made."""

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
    """`right` earns a reward of 1, those in `wrong` do not; the most usual mistake comes first."""

    problem: Problem
    right: Attempt
    wrong: tuple[Attempt, ...]

    @classmethod
    def of(cls, problem: Problem, attempts: Sequence[Attempt], right: int) -> Self:
        """Makes an example. `right`: index of the right attempt. Its successor, cyclically, is the
        usual mistake: each family has its own, so an imitator has to tell the families apart."""
        return cls(problem, attempts[right], (*attempts[right + 1 :], *attempts[:right]))
