"""Grading of what a program printed or returned for each test case. Pure: nothing runs here.

The expected outputs are compared in the service and never sent to where the program runs, so a
hostile program can only fail.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

SPARE_OUTPUT_BYTES = 1 << 16

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""Numbers that programs print. Python's own readers also accept `1_000` and the digits of all
scripts."""


class CaseOutcome(StrEnum):
    PASSED = "passed"
    WRONG = "wrong"
    """Different output, or more than could be right."""
    CRASHED = "crashed"
    """An exit code other than 0: an exception, a signal, too much memory."""
    TIMEOUT = "timeout"
    COMPILE_ERROR = "compile_error"


@dataclass(frozen=True, slots=True)
class Case:
    """One test case. The program reads `input` and should print `expected`, or its function should
    return it if `is_call`."""

    input: str
    expected: Any
    is_call: bool = False

    @property
    def max_output_bytes(self) -> int:
        """Size of output that cannot be right if exceeded."""
        text = json.dumps(self.expected) if self.is_call else self.expected
        return SPARE_OUTPUT_BYTES + 2 * len(text.encode())


@dataclass(frozen=True, slots=True)
class CaseRun:
    """Result of running a case. `end` is `exited`, `compile_error`, `timeout`, `output_limit` or
    `lost`: it killed the process that ran it."""

    end: str
    exit_code: int = 0
    output: str = ""
    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(slots=True)
class CodeReport:
    """Result of a program. `outcomes` has the cases that were run, in order."""

    cases: int
    outcomes: list[CaseOutcome] = field(default_factory=list)
    has_solution: bool = True
    time_scale: float = 1.0

    @property
    def passed(self) -> int:
        return self.outcomes.count(CaseOutcome.PASSED)

    @property
    def all_passed(self) -> bool:
        return self.passed == self.cases

    @property
    def share(self) -> float:
        return self.passed / self.cases

    def summary(self) -> str:
        """Returns one line."""
        counts = Counter(self.outcomes)
        parts = [f"{outcome} {counts[outcome]}" for outcome in CaseOutcome if counts[outcome]]
        if not self.has_solution:
            parts.append("there is no solution")
        elif len(self.outcomes) < self.cases:
            parts.append(f"not run {self.cases - len(self.outcomes)}")
        return f"{self.cases} cases: {', '.join(parts)}"

    def components(self) -> dict[str, float]:
        """Returns the rollout's reward components: shares, counts and flags."""
        return {
            "all_passed": float(self.all_passed),
            "passed_share": self.share,
            "has_solution": float(self.has_solution),
            "cases": float(self.cases),
            "cases_run": float(len(self.outcomes)),
            **{f"cases_{outcome}": float(self.outcomes.count(outcome)) for outcome in CaseOutcome},
            "time_scale": self.time_scale,
        }


def case_outcome(
    run: CaseRun, case: Case, *, cpu_limit_s: float, tolerance: float | None = None
) -> CaseOutcome:
    """Never raises for anything a program may have printed."""
    if run.end == "compile_error":
        return CaseOutcome.COMPILE_ERROR
    if run.end == "timeout" or run.cpu_s > cpu_limit_s:
        return CaseOutcome.TIMEOUT
    if run.end == "output_limit":
        return CaseOutcome.WRONG
    if run.end != "exited" or run.exit_code != 0:
        return CaseOutcome.CRASHED
    same = same_value if case.is_call else same_output
    return CaseOutcome.PASSED if same(run.output, case.expected, tolerance) else CaseOutcome.WRONG


def same_output(found: str, expected: str, tolerance: float | None = None) -> bool:
    """Compares lines, without white space at their ends and empty lines at the end.

    Numbers may differ by `tolerance`, relative to `expected` where that is above 1.
    """
    ours, theirs = _lines(found), _lines(expected)
    if ours == theirs or tolerance is None or len(ours) != len(theirs):
        return ours == theirs
    return all(
        _same_tokens(line.split(), other.split(), tolerance)
        for line, other in zip(ours, theirs, strict=True)
    )


def same_value(found: str, expected: Any, tolerance: float | None = None) -> bool:
    """Compares JSON. An expected list of one value also stands for the value: data sets wrap."""
    try:
        value = json.loads(found)
    except (ValueError, RecursionError):
        return False
    wrapped = isinstance(expected, list) and len(expected) == 1
    return _same(value, expected, tolerance) or (wrapped and _same(value, expected[0], tolerance))


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_tokens(found: Sequence[str], expected: Sequence[str], tolerance: float) -> bool:
    return len(found) == len(expected) and all(
        token == other or _is_close(token, other, tolerance)
        for token, other in zip(found, expected, strict=True)
    )


def _same(value: Any, expected: Any, tolerance: float | None) -> bool:
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(
            _same(item, other, tolerance) for item, other in zip(value, expected, strict=True)
        )
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            _same(item, expected[key], tolerance) for key, item in value.items()
        )
    if isinstance(value, bool) or isinstance(expected, bool):  # Python's True equals 1
        return value is expected
    if value == expected or tolerance is None:
        return bool(value == expected)
    numbers = all(isinstance(one, int | float) for one in (value, expected))
    return numbers and _is_close(repr(value), repr(expected), tolerance)


def _is_close(found: str, expected: str, tolerance: float) -> bool:
    if not (_NUMBER.fullmatch(found) and _NUMBER.fullmatch(expected)):
        return False
    try:
        number, other = Decimal(found), Decimal(expected)
        return abs(number - other) <= Decimal(repr(tolerance)) * max(Decimal(1), abs(other))
    except ArithmeticError:  # out of range
        return False
