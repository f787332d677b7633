import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.rewards.swe.grade import (
    FOREIGN,
    MAX_OTHER_RECORDS_BYTES,
    Expected,
    Results,
    SweOutcome,
    SweReport,
    TestRun,
    read_run,
    verdict,
)

NONCE = "n0"
EXPECTED = Expected("i", ["t.py::fix"], ["t.py::keep"])
Record = dict[str, Any]


def phase(id_: str, when: str = "call", outcome: str = "passed", **more: Any) -> Record:
    common = {"nonce": NONCE, "kind": "phase", "raised": False, "xfail": False}
    return {**common, "id": id_, "when": when, "outcome": outcome, **more}


def of_test(id_: str, outcome: str = "passed", **more: Any) -> list[Record]:
    call = phase(id_, "call", outcome, **more)
    return [phase(id_, "setup"), call, phase(id_, "teardown")]


def honest(**outcomes: str) -> list[Record]:
    """Returns the records that a fix leaves where only `canary` was changed; `outcomes` are by name
    of the test."""
    right = {"fix": "passed", "keep": "passed", "canary": "failed"} | outcomes
    ids = [f"t.py::{name}" for name in right]
    collected = {"nonce": NONCE, "kind": "collected", "ids": ids}
    phases = [
        one for id_, how in zip(ids, right.values(), strict=True) for one in of_test(id_, how)
    ]
    return [collected, *phases, {"nonce": NONCE, "kind": "end", "exit_code": 1}]


def graded(
    records: list[Record],
    exit_code: int | None = 1,
    *,
    timed_out: bool = False,
    expected: Expected = EXPECTED,
) -> SweReport:
    return judged(TestRun(NONCE, text_of(records), exit_code, timed_out), expected)


def text_of(records: list[Record]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def judged(run: TestRun, expected: Expected = EXPECTED) -> SweReport:
    """Returns the verdict on a run and one in which an honest patch let the changed test fail."""
    return verdict(read_run(run, expected, ["t.py::canary"]), other_run(), expected)


def other_run(status: str = "failed", exit_code: int = 1) -> Results:
    return Results(exit_code, canaries={"t.py::fix": {status}}, ended=True)


def test_a_fix_is_resolved_with_a_one_line_summary() -> None:
    report = graded(honest())
    assert report.resolved
    assert report.summary == "i: resolved; fail-to-pass 1/1; pass-to-pass 1/1"
    assert report.components()["resolved"] == 1.0


@pytest.mark.parametrize("outcome", ["failed", "skipped"])
@pytest.mark.parametrize("name", ["fix", "keep"])
def test_each_test_must_pass(name: str, outcome: str) -> None:
    report = graded(honest(**{name: outcome}))
    assert report.outcome is SweOutcome.UNRESOLVED
    assert report.statuses == {f"t.py::{name}": outcome}


def changed(index: int, **fields: Any) -> list[Record]:
    """Returns `honest()` with one record changed; record 5 is the second test's call."""
    records = honest()
    records[index] = {**records[index], **fields}
    return records


FIX_CALL, KEEP_SETUP, KEEP_CALL, CANARY_CALL = 2, 4, 5, 8


def test_a_test_that_raised_has_not_passed_whatever_was_reported() -> None:
    assert graded(changed(FIX_CALL, raised=True)).outcome is SweOutcome.UNRESOLVED


@pytest.mark.parametrize("outcome", ["passed", "skipped"])
def test_expected_failures_do_not_count(outcome: str) -> None:
    report = graded(changed(FIX_CALL, outcome=outcome, xfail=True))
    assert report.outcome is SweOutcome.UNRESOLVED


def test_a_test_that_is_expected_to_fail_must_do_so() -> None:
    expected = replace(EXPECTED, xfails={"t.py::keep"})
    assert graded(changed(KEEP_CALL, outcome="skipped", xfail=True), expected=expected).resolved
    for status, records in {
        "passed": honest(),
        "xpassed": changed(KEEP_CALL, xfail=True),
        "skipped": changed(KEEP_CALL, outcome="skipped"),
        "failed": changed(KEEP_CALL, outcome="failed", raised=True),
    }.items():
        assert graded(records, expected=expected).statuses == {"t.py::keep": status}


def test_missing_tests_and_phases_have_not_passed() -> None:
    without = [record for record in honest() if record.get("id") != "t.py::fix"]
    assert graded(without).statuses == {"t.py::fix": "missing"}
    partly = honest()
    del partly[FIX_CALL + 1]
    assert graded(partly).statuses == {"t.py::fix": "incomplete"}


def test_an_error_in_setup_is_not_a_pass() -> None:
    report = graded(changed(KEEP_SETUP, outcome="failed"))
    assert report.statuses == {"t.py::keep": "error"}


@pytest.mark.parametrize("exit_code", [0, 2, 137, None])
def test_the_exit_code_must_be_that_of_failed_canaries(exit_code: int | None) -> None:
    assert graded(honest(), exit_code).outcome is SweOutcome.TAMPERED


def test_a_canary_that_passes_is_tampering() -> None:
    assert graded(honest(canary="passed")).outcome is SweOutcome.TAMPERED
    assert graded(changed(CANARY_CALL, outcome="skipped")).outcome is SweOutcome.TAMPERED


def test_nothing_is_resolved_without_canaries() -> None:
    records = [record for record in honest() if record.get("id") != "t.py::canary"]
    assert graded(records).outcome is SweOutcome.TAMPERED
    whole = read_run(TestRun(NONCE, text_of(honest()), 1), EXPECTED, ["t.py::canary"])
    assert verdict(whole, Results(1, ended=True), EXPECTED).outcome is SweOutcome.TAMPERED


def test_a_run_without_an_end_record_has_crashed_or_timed_out() -> None:
    assert graded(honest()[:-1]).outcome is SweOutcome.CRASHED
    assert graded(honest()[:-1], None, timed_out=True).outcome is SweOutcome.TIMEOUT
    assert graded([], 0).outcome is SweOutcome.CRASHED


@pytest.mark.parametrize(
    "forged",
    [{"nonce": "guess"}, {"more": 1}, {"kind": "other"}],
)
def test_foreign_records_are_tampering(forged: Record) -> None:
    records = honest()
    records.insert(1, {**phase("t.py::other"), **forged})
    assert graded(records).outcome is SweOutcome.TAMPERED


def test_nothing_may_follow_the_end() -> None:
    assert graded([*honest(), phase("t.py::fix")]).outcome is SweOutcome.TAMPERED


@given(st.binary())
def test_any_bytes_are_graded(records: bytes) -> None:
    assert not judged(TestRun(NONCE, records, 1)).resolved


RECORDS = st.fixed_dictionaries(
    {"nonce": st.just(NONCE), "kind": st.sampled_from(["phase", "collected", "end"])},
    optional={
        name: st.none() | st.integers() | st.lists(st.integers()) | st.just("t.py::fix")
        for name in ("id", "when", "outcome", "raised", "xfail", "ids", "exit_code")
    },
)


@given(st.lists(RECORDS))
def test_records_of_any_kind_are_graded(records: list[Record]) -> None:
    assert not graded(records).resolved


@pytest.mark.parametrize("forged", ["[" * 100_000, '{"kind": []}', '{"ids": ["\\ud800"]}'])
def test_unreadable_json_is_tampering(forged: str) -> None:
    first = json.dumps(honest()[0])
    run = TestRun(NONCE, f"{first}\n{forged}\n".encode(), 1)
    assert judged(run).outcome is SweOutcome.TAMPERED


@pytest.mark.slow
def test_records_beyond_those_of_the_requested_tests_are_not_read() -> None:
    records = honest()
    many = [one for number in range(30_000) for one in of_test(f"t.py::other[{number}]")]
    assert len(json.dumps(many)) > MAX_OTHER_RECORDS_BYTES
    report = graded([*many, *records])
    assert report.problems[0] == f"{FOREIGN}: too many bytes"
    assert report.fail_to_pass == 0
    ids = [f"t.py::other[{number}]" for number in range(30_000)]
    collected = {**records[0], "ids": [*records[0]["ids"], *ids]}
    asked = replace(EXPECTED, pass_to_pass=[*EXPECTED.pass_to_pass, *ids])
    assert graded([collected, *many, *records[1:]], expected=asked).resolved


def test_a_flood_of_results_is_not_read() -> None:
    for size_mb in (20, 40):
        report = judged(TestRun(NONCE, b"\n" * (size_mb << 20), 1))
        assert report.outcome is SweOutcome.TAMPERED
        assert len(report.problems) == 2


@pytest.mark.parametrize(
    ("statuses", "resolved"),
    [
        ({"failed"}, True),
        ({"failed", "skipped"}, True),
        ({"failed", "passed"}, False),
        ({"failed", "xfailed"}, False),
        ({"skipped"}, False),
        (set(), False),
    ],
)
def test_a_canary_of_many_tests_may_skip_some_of_them(statuses: set[str], resolved: bool) -> None:
    passed = {"t.py::fix": "passed", "t.py::keep": "passed"}
    whole = Results(0, statuses=passed, ended=True)
    changed = Results(1, canaries={"t.py::fix": statuses}, ended=True)
    assert verdict(whole, changed, EXPECTED).resolved is resolved


def test_a_changed_test_counts_in_the_run_in_which_it_was_as_it_is() -> None:
    whole = Results(1, statuses={"t.py::fix": "passed"}, canaries={"t.py::keep": {"failed"}})
    changed = Results(1, statuses={"t.py::keep": "passed"}, canaries={"t.py::fix": {"failed"}})
    whole.ended = changed.ended = True
    assert verdict(whole, changed, EXPECTED).resolved
    changed.statuses["t.py::keep"] = "failed"
    assert verdict(whole, changed, EXPECTED).statuses == {"t.py::keep": "failed"}


def test_parameters_that_are_not_listed_do_not_count_as_canaries() -> None:
    ids = ["t.py::canary[1]", "t.py::canary[2]"]
    collected = {"nonce": NONCE, "kind": "collected", "ids": ids}
    records = [collected, *of_test(ids[0], "failed"), *of_test(ids[1]), honest()[-1]]
    run = TestRun(NONCE, text_of(records), 1)
    found = read_run(run, Expected("i", ids[:1], []), ["t.py::canary"])
    assert found.canaries == {"t.py::canary": {"failed"}}
    assert found.statuses == {}


@pytest.mark.parametrize(("status", "exit_code"), [("passed", 1), ("failed", 0), ("failed", 2)])
def test_the_other_run_must_fail_too(status: str, exit_code: int) -> None:
    whole = read_run(TestRun(NONCE, text_of(honest()), 1), EXPECTED, ["t.py::canary"])
    assert verdict(whole, other_run(), EXPECTED).resolved
    report = verdict(whole, other_run(status, exit_code), EXPECTED)
    assert report.outcome is SweOutcome.TAMPERED
