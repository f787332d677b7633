"""Small programs of ten families: five operations, each as a program that prints and a function.

A policy has to learn which operation a text asks for; hidden tests tell all operations apart. A
pure function of the seed: the held-out split shares no number with the training split.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import add, mod, mul
from random import Random
from typing import Any, Literal

from prorl_service.agents.code.data import CodeTests
from prorl_service.agents.code.evaluation import SOLUTION
from recipes.common.data.splits import Split, keys_of
from recipes.math_code.offline.examples import Attempt, Example
from recipes.math_code.rows import CodeProblem, Problem

SOURCE = "offline_code"
NUMBERS = range(10, 100)
FUNCTION = "solve"
CREATED = f"File created successfully at: {SOLUTION}"
"""The editor's answer."""

Form = Literal["program", "function"]
QUESTIONS: dict[Form, str] = {
    "program": "Read a whole number x. Print {what}.",
    "function": f"Write {FUNCTION}(x). It returns {{what}}.",
}
PROGRAMS: dict[Form, str] = {
    "program": "x = int(input())\nprint({value})\n",
    "function": f"def {FUNCTION}(x):\n    return {{value}}\n",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """`what` and `value`: the operation on x and n, in words and in Python; `of` computes it."""

    name: str
    what: str
    value: str
    of: Callable[[int, int], int]


OPERATIONS = (
    Operation("sum", "the sum of x and {n}", "x + {n}", add),
    Operation("product", "the product of x and {n}", "x * {n}", mul),
    Operation("remainder", "what is left of x divided by {n}", "x % {n}", mod),
    Operation("larger", "the larger of x and {n}", "max(x, {n})", max),
    Operation("smaller", "the smaller of x and {n}", "min(x, {n})", min),
)


def examples(split: Split, *, seed: int = 0) -> list[Example]:
    """Returns one example of each family for each number."""
    return [
        _example(form, right, n)
        for n in keys_of(split, NUMBERS, seed=seed)
        for right in OPERATIONS
        for form in PROGRAMS
    ]


def problems(split: Split, *, seed: int = 0) -> list[Problem]:
    return [example.problem for example in examples(split, seed=seed)]


def _example(form: Form, right: Operation, n: int) -> Example:
    attempts = [_attempt(form, one, n) for one in OPERATIONS]
    problem = CodeProblem(
        problem_id=f"{form}-{right.name}-{n}",
        source=SOURCE,
        question=QUESTIONS[form].format(what=right.what.format(n=n)),
        tests=_tests(form, right, n),
    )
    return Example.of(problem, attempts, OPERATIONS.index(right))


def _attempt(form: Form, operation: Operation, n: int) -> Attempt:
    program = PROGRAMS[form].format(value=operation.value.format(n=n))
    arguments = {"command": "create", "path": SOLUTION, "file_text": program}
    return Attempt("str_replace_editor", arguments, CREATED, "Done.")


def _tests(form: Form, operation: Operation, n: int) -> CodeTests:
    """Tests both sides of n: below it the remainder is x itself, as is the smaller of the two."""
    draw = Random(f"{form}/{operation.name}/{n}").randrange
    numbers = [draw(2, n), draw(n + 1, 2 * n), draw(2 * n + 1, 1000), draw(1000, 10_000)]
    results = [operation.of(x, n) for x in numbers]
    if form == "program":
        return CodeTests(inputs=[f"{x}\n" for x in numbers], outputs=[f"{y}\n" for y in results])
    inputs: list[str | list[Any]] = [[x] for x in numbers]
    return CodeTests(inputs=inputs, outputs=results, fn_name=FUNCTION)
