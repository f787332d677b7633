import ast
import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.rewards.swe import Expected, SweOutcome, SweReport, TestRun, grade
from prorl_service.rewards.swe_canary import with_canary
from prorl_service.rewards.swe_patch import Change, changes, is_protected, patched_files, signals

NONCE = "n0"
EXPECTED = Expected("i", ["t.py::fix"], ["t.py::keep"], ["t.py::canary"])
Record = dict[str, Any]


def phase(id_: str, when: str = "call", outcome: str = "passed", **more: Any) -> Record:
    common = {"nonce": NONCE, "kind": "phase", "raised": False, "xfail": False}
    return {**common, "id": id_, "when": when, "outcome": outcome, **more}


def of_test(id_: str, outcome: str = "passed", **more: Any) -> list[Record]:
    call = phase(id_, "call", outcome, **more)
    return [phase(id_, "setup"), call, phase(id_, "teardown")]


def honest(**outcomes: str) -> list[Record]:
    """What a fix leaves; `outcomes` by the name of a test."""
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
    text = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    return grade(TestRun(NONCE, text, exit_code, timed_out), expected)


def test_a_fix_is_resolved_and_says_so_in_one_line() -> None:
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
    """`honest` with one record changed. Its second test's call is number 5."""
    records = honest()
    records[index] = {**records[index], **fields}
    return records


FIX_CALL, KEEP_SETUP, KEEP_CALL, CANARY_CALL = 2, 4, 5, 8


def test_what_a_test_raised_counts_and_not_only_what_is_reported() -> None:
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


def test_an_error_in_set_up_is_no_pass() -> None:
    report = graded(changed(KEEP_SETUP, outcome="failed"))
    assert report.statuses == {"t.py::keep": "error"}


@pytest.mark.parametrize("exit_code", [0, 2, 137, None])
def test_the_exit_code_must_be_that_of_failed_canaries(exit_code: int | None) -> None:
    assert graded(honest(), exit_code).outcome is SweOutcome.TAMPERED


def test_a_canary_that_passes_is_tampering() -> None:
    assert graded(honest(canary="passed")).outcome is SweOutcome.TAMPERED
    assert graded(changed(CANARY_CALL, outcome="skipped")).outcome is SweOutcome.TAMPERED


def test_without_canaries_nothing_is_resolved() -> None:
    records = [record for record in honest() if record.get("id") != "t.py::canary"]
    assert graded(records).outcome is SweOutcome.TAMPERED
    text = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    expected = Expected("i", ["t.py::fix"], [])
    assert grade(TestRun(NONCE, text, 1), expected).outcome is SweOutcome.TAMPERED


def test_a_run_without_its_end_has_crashed_or_timed_out() -> None:
    assert graded(honest()[:-1]).outcome is SweOutcome.CRASHED
    assert graded(honest()[:-1], None, timed_out=True).outcome is SweOutcome.TIMEOUT
    assert graded([], 0).outcome is SweOutcome.CRASHED


@pytest.mark.parametrize(
    "forged",
    [{"nonce": "guess"}, {"more": 1}, {"kind": "other"}],
)
def test_foreign_records_keep_it_from_being_resolved(forged: Record) -> None:
    records = honest()
    records.insert(1, {**phase("t.py::other"), **forged})
    assert graded(records).outcome is SweOutcome.TAMPERED


def test_nothing_may_follow_the_end() -> None:
    assert graded([*honest(), phase("t.py::fix")]).outcome is SweOutcome.TAMPERED


@given(st.binary())
def test_any_bytes_are_graded(records: bytes) -> None:
    assert not grade(TestRun(NONCE, records, 1), EXPECTED).resolved


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
def test_what_no_json_reader_likes_is_tampering(forged: str) -> None:
    first = json.dumps(honest()[0])
    run = TestRun(NONCE, f"{first}\n{forged}\n".encode(), 1)
    assert grade(run, EXPECTED).outcome is SweOutcome.TAMPERED


def test_a_flood_of_results_is_not_read() -> None:
    for size_mb in (20, 40):
        report = grade(TestRun(NONCE, b"\n" * (size_mb << 20), 1), EXPECTED)
        assert report.outcome is SweOutcome.TAMPERED
        assert len(report.problems) == 2


# --- which changes count ------------------------------------------------------------------------


def protected(path: str, mode: str = "100644", allowed: tuple[str, ...] = ()) -> bool:
    return is_protected(Change(path, "100644", mode), allowed=allowed, tests=["data/case.json"])


@pytest.mark.parametrize(
    "path",
    [
        *("conftest.py", "a/conftest.py", "pytest.ini", "setup.cfg", "tox.ini", "pyproject.toml"),
        *("tests/helper.py", "test/x.json", "a/test_b.py", "b_test.py", "tests.py", ".coveragerc"),
        *("src/sitecustomize.py", "usercustomize.py", "x.pth", "pytest.py", "_pytest/runner.py"),
        *("pluggy/__init__.py", "a/__pycache__/b.cpython-311.pyc", "a/b.so", "data/case.json"),
        *("unittest/case.py", "src/unittest.py", "sympy/utilities/runtests.py", "bin/test"),
        *("Conftest.py", "conftest.pyc", "sitecustomize/__init__.py", ".git/hooks/x"),
        "src/a.egg-info/entry_points.txt",
    ],
)
def test_what_decides_about_tests_is_protected(path: str) -> None:
    assert protected(path)


@pytest.mark.parametrize("path", ["src/a.py", "latest.py", "contest.py", "docs/testing.md", "x.c"])
def test_source_is_not(path: str) -> None:
    assert not protected(path)


@pytest.mark.parametrize("path", ["data", "data/case.json/x"])
def test_a_file_cannot_be_where_the_data_set_needs_a_directory(path: str) -> None:
    assert protected(path)
    assert not protected("data/case.json2")


def test_links_and_submodules_are_protected_and_removals_are_not() -> None:
    assert protected("a", "120000")
    assert protected("a", "160000")
    assert not protected("a", "000000")


def test_what_the_reference_patch_changes_may_be_changed_but_not_the_data_sets_tests() -> None:
    assert not protected("setup.cfg", allowed=("setup.cfg",))
    assert protected("data/case.json", allowed=("data/case.json",))
    assert protected("setup.cfg", "120000", allowed=("setup.cfg",))
    assert not protected("src/_pytest/a.py", allowed=("src/_pytest/",))
    assert protected("src/_pytest2/conftest.py", allowed=("src/_pytest",))


def test_changes_are_read_as_git_writes_them() -> None:
    raw = b":100644 000000 a b D\0old name\0:000000 100755 c d A\0new\n\xff\0"
    old, new = changes(raw)
    assert (old.path, old.is_new) == ("old name", False)
    assert (new.new_mode, new.is_new) == ("100755", True)
    assert new.path.encode(errors="surrogateescape") == b"new\n\xff"


def test_the_files_of_a_patch() -> None:
    patch = "--- a/x.py\n+++ b/x.py\n--- /dev/null\n+++ b/y z.py\t\ndiff --git a/b.bin b/b.bin\n"
    assert patched_files(patch) == ["b.bin", "x.py", "y z.py"]


def test_signals_are_lines_that_were_added() -> None:
    assert signals(b"-import pytest\n import pytest\n+import os\n") == []
    assert signals(b"+import _pytest\n") == ["+import _pytest"]


# --- canaries -----------------------------------------------------------------------------------

SOURCE = '''\
import pytest


@pytest.mark.parametrize("x", [1, 2])
def test_plain(x):
    """Text."""
    return x


class TestCase:
    def test_method(self):
        with open("x"):
            pass


def test_one_line(): pass
'''


def functions(source: str) -> dict[str, ast.FunctionDef]:
    return {
        node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize(
    "test_id", ["t.py::test_plain[a::b]", "t.py::TestCase::test_method", "t.py::test_one_line"]
)
@pytest.mark.parametrize("seed", range(5))
def test_a_canary_fails_first_thing_and_changes_nothing_else(test_id: str, seed: int) -> None:
    with_it, name = with_canary(SOURCE, test_id, Random(seed))
    before, after = functions(SOURCE), functions(with_it)
    canary = after.pop(name)
    assert isinstance(canary.body[0], ast.Assert)
    assert {key: ast.dump(node) for key, node in after.items()} == {
        key: ast.dump(node) for key, node in before.items()
    }


def test_a_canary_is_like_its_test() -> None:
    with_it, name = with_canary(SOURCE, "t.py::test_plain[1]", Random(0))
    canary, original = functions(with_it)[name], functions(with_it)["test_plain"]
    assert [ast.dump(one) for one in canary.body[1:]] == [ast.dump(one) for one in original.body]
    assert ast.dump(canary.args) == ast.dump(original.args)
    assert len(canary.decorator_list) == len(original.decorator_list)
    assert "canary" not in with_it


def test_files_of_other_versions_of_python_get_a_canary_too() -> None:
    with_it, name = with_canary("print 'x'\n", "t.py::test_x", Random(0))
    assert with_it.startswith("print 'x'\n")
    assert f"def {name}():\n    assert 0x" in with_it
