"""Programs and their tests, right and wrong, made from a seed for this repository.

`family` says how a row was made, which explains disagreements between scorers.
"""

import io
import json
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from random import Random
from typing import Any

from bench.rewards.code_problems import PROBLEMS, Problem

CASES = 5


@dataclass(frozen=True, slots=True)
class Row:
    """`tests`: in the form of APPS, all as text, which both scorers read."""

    name: str
    family: str
    source: str
    tests: dict[str, Any]
    right: bool


def rows(sets: int, *, seed: int) -> list[Row]:
    """Makes six programs of each problem on each of `sets` sets of tests, and the tricky ones."""
    made = []
    for problem in PROBLEMS:
        rng = Random(f"{seed}/{problem.name}")
        for number in range(sets):
            tests = _tests(problem, rng)
            for family, source in _programs(problem).items():
                right = family in ("plain", "restyled")
                if family.startswith("mistake"):  # not every set of tests shows it
                    right = _outputs(problem, source, tests["inputs"]) == tests["outputs"]
                made.append(Row(f"{problem.name}-{family}-{number}", family, source, tests, right))
    return made + TRICKY


def _programs(problem: Problem) -> dict[str, str]:
    source = problem.source
    return {
        "plain": source,
        "restyled": f"print('working')\n{source}" if problem.fn_name else _in_main(source),
        "mistake 1": problem.wrong(0),
        "mistake 2": problem.wrong(1),
        "crash": f"{source}\nraise ValueError('no')\n",
        "syntax": source.replace("(", "((", 1),
    }


def _in_main(source: str) -> str:
    body = "".join(f"    {line}\n" for line in source.splitlines())
    return f"def main():\n{body}\n\nif __name__ == '__main__':\n    main()\n    print()\n"


def _tests(problem: Problem, rng: Random) -> dict[str, Any]:
    made = [problem.make(rng) for _ in range(CASES)]
    inputs = ["\n".join(map(json.dumps, one)) for one in made] if problem.fn_name else made
    tests = {"inputs": inputs, "outputs": _outputs(problem, problem.source, inputs)}
    return tests | ({"fn_name": problem.fn_name} if problem.fn_name else {})


def _outputs(problem: Problem, source: str, inputs: list[str]) -> list[str] | None:
    """Runs the program in this process, for it is ours. Returns None if it fails."""
    try:
        return [_output(problem.fn_name, source, one) for one in inputs]
    except Exception:
        return None


def _output(fn_name: str | None, source: str, given: str) -> str:
    names: dict[str, Any] = {"__name__": "__main__"}
    printed, stdin = io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(given)
    try:
        with redirect_stdout(printed):
            exec(source, names)
    finally:
        sys.stdin = stdin
    if fn_name is None:
        return printed.getvalue()
    owner = names.get("Solution")
    function = getattr(owner(), fn_name) if owner else names[fn_name]
    return json.dumps(function(*map(json.loads, given.split("\n"))))


def _prints(name: str, source: str, expected: str, *, right: bool = False) -> Row:
    return Row(name, name, source, {"inputs": ["4\n"], "outputs": [expected]}, right)


TRICKY = [
    _prints("words of a line in another order", "print('2 1')", "1 2\n"),
    _prints("a blank before the first word", "print(' 1')", "1\n"),
    _prints("fewer digits", "print(0.3333333)", "0.333333333333\n"),
    _prints("no import", "print(int(sqrt(int(input()))))", "2\n"),
    _prints("right, then exit code 1", "print(2)\nraise SystemExit(1)", "2\n"),
    Row(
        "first item of the list",
        "first item of the list",
        "def first(n):\n    return 1",
        {"fn_name": "first", "inputs": ["4"], "outputs": ["[1, 2]"]},
        False,
    ),
]
