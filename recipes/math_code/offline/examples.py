"""A problem with ways to answer it, right and wrong: what demonstrations are made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    """`right` earns a reward of 1, none of `wrong` does."""

    problem: Problem
    right: Attempt
    wrong: tuple[Attempt, ...]
