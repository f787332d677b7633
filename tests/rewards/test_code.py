"""Comparison of outputs and values, and reports of cases; no program runs here."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.rewards.code.grade import (
    Case,
    CaseOutcome,
    CaseRun,
    CodeReport,
    case_outcome,
    same_output,
    same_value,
)

TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text())
TEXT = st.text(alphabet="a1. -\t\r\nñ", max_size=40)
WORD = st.text(alphabet="ab1.-", min_size=1, max_size=6)
LINES = st.lists(st.lists(WORD, min_size=1, max_size=4), min_size=1, max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def joined(lines: list[list[str]]) -> str:
    return "\n".join(map(" ".join, lines))


@given(TEXT, st.sampled_from(["", "\n", "\n\n", " \n", "\r\n", "\t"]))
def test_trailing_white_space_of_lines_and_output_does_not_count(text: str, end: str) -> None:
    assert same_output(text + end, text)
    assert same_output(text.replace("\n", " \n"), text)


@given(LINES, LINES, st.sampled_from([None, 1e-6]))
def test_outputs_differ_if_their_words_differ(
    found: list[list[str]], expected: list[list[str]], tolerance: float | None
) -> None:
    same = same_output(joined(found), joined(expected), tolerance)
    lengths = [[len(line) for line in lines] for lines in (found, expected)]
    # With a tolerance, other words may be the same number.
    assert same is (found == expected) or (tolerance and same and lengths[0] == lengths[1])


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    TABLES["outputs"],
)
def test_all_other_differences_count(found: str, expected: str, same: bool) -> None:
    assert same_output(found, expected) is same


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        *TABLES["numbers"],
        ("1" * 5000, "1" * 4999 + "2", True),
    ],
)
def test_numbers_may_differ_by_a_tolerance(found: str, expected: str, same: bool) -> None:
    assert same_output(found, expected, 1e-6) is same


@given(VALUES)
def test_a_value_equals_its_json(value: Any) -> None:
    assert same_value(json.dumps(value), value)
    assert same_value(json.dumps(value), [value])
    assert same_value(json.dumps(value), value, 1e-6)


@pytest.mark.parametrize(
    ("found", "expected", "tolerance", "same"),
    [
        ("[1, 2]", [1, 2], None, True),
        ("[2, 1]", [1, 2], None, False),
        ("1", [1, 2], None, False),
        ("[1]", 1, None, False),
        ("1.0000001", 1, None, False),
        ("1.0000001", 1, 1e-6, True),
        ('{"a": [1.0000001]}', {"a": [1]}, 1e-6, True),
        ('{"b": 1}', {"a": 1}, 1e-6, False),
        ('"1.0000001"', "1", 1e-6, False),
        ("true", 1.0000001, 1e-6, False),
        ("NaN", 1, 1e-6, False),
        ("", None, None, False),
        ("null", None, None, True),
        ("[" * 100_000, [], None, False),
        ("9" * 10_000, 9, None, False),
        ("[[true, false]]", [[True, False]], None, True),
        ("1.0", 1, None, True),
    ],
)
def test_values_are_compared_as_json(
    found: str, expected: Any, tolerance: float | None, same: bool
) -> None:
    assert same_value(found, expected, tolerance) is same


@given(VALUES, st.sampled_from([None, 1e-6]))
def test_booleans_in_the_place_of_numbers_are_wrong(value: Any, tolerance: float | None) -> None:
    swapped = with_booleans(value)
    is_unchanged = json.dumps(swapped) == json.dumps(value)
    assert same_value(json.dumps(swapped), value, tolerance) is is_unchanged
    assert same_value(json.dumps(value), swapped, tolerance) is is_unchanged


def with_booleans(value: Any) -> Any:
    """Returns the value with a boolean for each 0 and 1."""
    if isinstance(value, list):
        return [with_booleans(item) for item in value]
    if isinstance(value, dict):
        return {key: with_booleans(item) for key, item in value.items()}
    return bool(value) if value in (0, 1) else value


@given(st.text(), VALUES, st.sampled_from([None, 0.5]))
def test_no_printed_text_makes_the_comparison_raise(
    found: str, expected: Any, tolerance: float | None
) -> None:
    assert same_value(found, expected, tolerance) in (True, False)
    assert same_output(found, json.dumps(expected), tolerance) in (True, False)


RIGHT = CaseRun("exited", output="1\n", cpu_s=0.5)


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (RIGHT, CaseOutcome.PASSED),
        (CaseRun("exited", output="2"), CaseOutcome.WRONG),
        (CaseRun("exited", exit_code=1, output="1"), CaseOutcome.CRASHED),
        (CaseRun("exited", exit_code=137, output="1", cpu_s=1.5), CaseOutcome.TIMEOUT),
        (CaseRun("timeout", output="1"), CaseOutcome.TIMEOUT),
        (CaseRun("output_limit", output="1"), CaseOutcome.WRONG),
        (CaseRun("lost", output="1"), CaseOutcome.CRASHED),
        (CaseRun("compile_error", output="1"), CaseOutcome.COMPILE_ERROR),
    ],
)
def test_only_a_clean_exit_in_time_can_pass(run: CaseRun, outcome: CaseOutcome) -> None:
    assert case_outcome(run, Case("", "1"), cpu_limit_s=1) is outcome


def test_a_report_counts_outcomes_in_one_line() -> None:
    report = CodeReport(4, [CaseOutcome.PASSED, CaseOutcome.WRONG], time_scale=2)
    assert (report.all_passed, report.share) == (False, 0.25)
    assert report.summary() == "4 cases: passed 1, wrong 1, not run 2"
    components = report.components()
    assert components["passed_share"] == 0.25
    assert components["cases_run"] == 2
    assert components["cases_wrong"] == 1
    assert components["time_scale"] == 2
    nothing = CodeReport(4, has_solution=False)
    assert nothing.summary() == "4 cases: there is no solution"
    assert nothing.components()["has_solution"] == 0
