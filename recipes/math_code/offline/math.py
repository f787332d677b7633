"""Word problems of four families, each solved by one right calculation with a tool.

A family tells a story with two numbers; a policy has to learn which calculation it asks for.
The answer is what bash or IPython prints, in a box. A pure function of the seed: the held-out split
shares no pair of numbers with the training split.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from operator import add, mod, mul, sub
from typing import Literal

from recipes.common.data.splits import Split, keys_of
from recipes.math_code.offline.examples import Attempt, Example
from recipes.math_code.rows import MathProblem, Problem

SOURCE = "offline_math"
# Where the first number is at least twice the second, all calculations have different results.
PAIRS = [(a, b) for b in range(3, 50) for a in range(2 * b, 100)]


@dataclass(frozen=True, slots=True)
class Family:
    """`sign`: operator of the right calculation, in bash and in Python."""

    name: str
    story: str
    sign: str


FAMILIES = (
    Family("sum", "A shelf holds {a} books, and {b} more are put on it. How many are there?", "+"),
    Family("difference", "Of {a} litres of water {b} are used. How many litres are left?", "-"),
    Family("product", "A shop has {a} boxes with {b} nails each. How many nails are there?", "*"),
    Family("remainder", "{a} sweets are dealt evenly to {b} children. How many are over?", "%"),
)
RESULTS: dict[str, Callable[[int, int], int]] = {"+": add, "-": sub, "*": mul, "%": mod}

Tool = Literal["bash", "ipython"]
CALLS: dict[Tool, tuple[str, str]] = {
    "bash": ("command", "echo $(({}))"),
    "ipython": ("code", "print({})"),
}
"""The tool's argument, and code that prints a calculation."""


def examples(split: Split, *, seed: int = 0, tool: Tool = "bash") -> list[Example]:
    """Returns an example for each pair of numbers; the families take turns."""
    pairs = keys_of(split, PAIRS, seed=seed)
    families = cycle(FAMILIES)
    return [_example(family, pair, tool) for family, pair in zip(families, pairs, strict=False)]


def problems(split: Split, *, seed: int = 0) -> list[Problem]:
    return [example.problem for example in examples(split, seed=seed)]


def _example(family: Family, pair: tuple[int, int], tool: Tool) -> Example:
    attempts = [_attempt(sign, pair, tool) for sign in RESULTS]
    return Example.of(_problem(family, pair), attempts, list(RESULTS).index(family.sign))


def _attempt(sign: str, pair: tuple[int, int], tool: Tool) -> Attempt:
    argument, code = CALLS[tool]
    a, b = pair
    result = str(RESULTS[sign](a, b))
    return Attempt(tool, {argument: code.format(f"{a}{sign}{b}")}, result, rf"\boxed{{{result}}}")


def _problem(family: Family, pair: tuple[int, int]) -> MathProblem:
    a, b = pair
    return MathProblem(
        problem_id=f"{family.name}-{a}-{b}",
        source=SOURCE,
        question=family.story.format(a=a, b=b),
        answer=str(RESULTS[family.sign](a, b)),
    )
