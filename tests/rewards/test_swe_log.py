"""Grading by log: the reader as a program, the watch in real runs of unittest, the verdict."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.rewards.swe import guest_unittest_plugin, log_reader
from prorl_service.rewards.swe.canary import likely_tests
from prorl_service.rewards.swe.grade import Expected, Results, SweOutcome, SweReport, verdict
from prorl_service.rewards.swe.log import LogRun, read_log_run
from prorl_service.rewards.swe.log_reader import read_log, reported_failures

DJANGO, PYTEST, SYMPY = "parse_log_django", "parse_log_pytest_v2", "parse_log_sympy"

FIX, KEEP, CANARY = "test_fix (a.C)", "test_keep (a.C)", "test_fix_again (a.C)"
EXPECTED = Expected("i", [FIX], [KEEP])
CHANGED = {"a.py::C::test_fix_again": ""}
HONEST = {FIX: "passed", KEEP: "passed", CANARY: "failed"}
SEEN = {FIX: False, KEEP: False, CANARY: True}
OTHER = Results(
    1, statuses={CANARY: "passed"}, canaries={"a.py::C::test_fix": {"failed"}}, ended=True
)


def records(raised: Mapping[str, bool]) -> bytes:
    lines = [json.dumps({"names": [name, ""], "raised": how}) for name, how in raised.items()]
    return "\n".join(lines).encode()


def graded(
    statuses: Mapping[str, str] = HONEST,
    raised: Mapping[str, bool] = SEEN,
    exit_code: int | None = 1,
    expected: Expected = EXPECTED,
    changed: Mapping[str, str] = CHANGED,
) -> SweReport:
    """Returns the verdict on a run and one in which an honest patch let the changed test fail."""
    run = LogRun(statuses, records(raised), exit_code, exit_code is None)
    return verdict(read_log_run(run, expected, changed), OTHER, expected)


# --- the verdict --------------------------------------------------------------------------------


def test_a_fix_is_resolved() -> None:
    report = graded()
    assert report.resolved
    assert report.summary == "i: resolved; fail-to-pass 1/1; pass-to-pass 1/1"


@pytest.mark.parametrize("status", ["failed", "error", "skipped", "xfailed"])
@pytest.mark.parametrize("test", [FIX, KEEP])
def test_each_test_must_pass(test: str, status: str) -> None:
    report = graded({**HONEST, test: status})
    assert report.outcome is SweOutcome.UNRESOLVED
    assert report.statuses == {test: status}


def test_missing_tests_have_not_passed() -> None:
    assert graded({KEEP: "passed", CANARY: "failed"}).statuses == {FIX: "missing"}
    assert graded({}).outcome is SweOutcome.CRASHED
    assert graded({}, exit_code=None).outcome is SweOutcome.TIMEOUT


def test_the_watch_can_only_worsen_a_status() -> None:
    assert graded(raised={**SEEN, FIX: True}).statuses == {FIX: "failed"}
    assert graded({**HONEST, FIX: "skipped"}).statuses == {FIX: "skipped"}


def test_a_unittest_test_must_have_been_seen_by_the_watch() -> None:
    assert graded(raised={KEEP: False, CANARY: True}).statuses == {FIX: "unseen"}
    assert graded(raised={}).outcome is SweOutcome.UNRESOLVED


def test_other_runners_are_not_watched() -> None:
    statuses = {"t.py::fix": "passed", "t.py::test_fix_again": "failed"}
    expected = Expected("i", ["t.py::fix"], [])
    changed = {"t.py::test_fix_again": ""}
    assert graded(statuses, raised={}, expected=expected, changed=changed).resolved


@pytest.mark.parametrize("exit_code", [0, 2, 137])
def test_the_exit_code_must_be_that_of_failed_canaries(exit_code: int) -> None:
    assert graded(exit_code=exit_code).outcome is SweOutcome.TAMPERED


@pytest.mark.parametrize("status", ["passed", "skipped", "missing"])
def test_the_log_must_report_a_failed_canary(status: str) -> None:
    told = {} if status == "missing" else {CANARY: status}
    expected = Expected("i", [FIX], [KEEP, CANARY])
    report = graded({FIX: "passed", KEEP: "passed", **told}, expected=expected)
    assert report.outcome is SweOutcome.TAMPERED


def test_a_canary_that_raises_is_an_error_in_some_logs() -> None:
    assert graded({FIX: "passed", KEEP: "passed", CANARY: "error"}).resolved


def test_a_canary_that_was_seen_to_pass_is_tampering() -> None:
    assert graded(raised={**SEEN, CANARY: False}).outcome is SweOutcome.TAMPERED


@pytest.mark.parametrize(
    "form",
    [
        *("test_again", "a/t.py::C::test_again[x-1]", "t.py::C::test_again", "a/t.py:test_again"),
        *("test_again (a.t.C)", "test_again (a.t.C.test_again)", "What it does."),
    ],
)
def test_a_canary_is_known_in_all_forms_of_its_name(form: str) -> None:
    expected = Expected("i", ["fix"], [])
    changed = {"a/t.py::C::test_again": "What it does."}
    statuses = {"fix": "passed", form: "failed", "test_again_not": "passed"}
    assert graded(statuses, {form: True}, expected=expected, changed=changed).resolved
    report = graded({**statuses, form: "passed"}, {}, expected=expected, changed=changed)
    assert report.outcome is SweOutcome.TAMPERED


def test_a_changed_test_that_no_id_means_need_not_run() -> None:
    changed = {**CHANGED, "b.py::Other::test_other": ""}
    assert graded(changed=changed).resolved


def test_a_cut_id_passes_only_if_all_its_matches_pass() -> None:
    cut, canary = "t.py::f[log(a", {"t.py::again": "failed"}
    expected = Expected("i", [cut], [])
    changed = {"t.py::again": ""}

    def status(**found: str) -> str:
        statuses = {f"t.py::f[log(a {key})]": how for key, how in found.items()}
        report = graded({**statuses, **canary}, {}, expected=expected, changed=changed)
        return report.statuses.get(cut, "passed")

    assert status(b="passed", c="passed") == "passed"
    assert status(b="passed", c="failed") == "failed"
    assert status() == "missing"


@given(st.dictionaries(st.text(), st.sampled_from(["passed", "failed"])), st.binary())
def test_any_statuses_and_records_are_graded(statuses: dict[str, str], watched: bytes) -> None:
    found = read_log_run(LogRun(statuses, watched, 1), EXPECTED, CHANGED)
    assert not verdict(found, OTHER, EXPECTED).resolved


# --- the reader ---------------------------------------------------------------------------------

HERE = Path(__file__).parent


def test_a_django_log_is_read() -> None:
    statuses = read_log((HERE / "django_log.txt").read_text(), DJANGO)
    wanted = ["test_a (m.C)", "What b does.", "test_e (m.C)", "What f does.", "test_g (m.C)"]
    assert [statuses[test] for test in wanted] == ["passed", "passed", "failed", "failed", "failed"]
    assert statuses["test_c (m.C)"] == "skipped"
    assert "test_d (m.C)" not in statuses


def test_a_pytest_log_is_read() -> None:
    log = "PASSED t.py::a\nFAILED t.py::b - x\nXFAIL t.py::c\nPASSED t.py::b\n"
    assert read_log(log, PYTEST) == {"t.py::a": "passed", "t.py::b": "failed", "t.py::c": "xfailed"}
    assert read_log("ERROR t.py::a - y\nPASSED t.py::a\n", PYTEST)["t.py::a"] == "failed"


@pytest.mark.parametrize("colons", [":", "::"])
def test_a_sympy_log_is_read(colons: str) -> None:
    log = f"test_a ok\ntest_b  ok\n F\ntest_c E\n____ x/t.py{colons}test_b ____\n"
    statuses = read_log(log, SYMPY)
    assert (statuses["test_a"], statuses["test_b"]) == ("passed", "failed")
    assert statuses["test_c"] == "error"


@pytest.mark.parametrize(("count", "status"), [(2, "passed"), (3, "passed"), (1, "doubtful")])
def test_passes_are_doubtful_if_the_runner_counted_fewer(count: int, status: str) -> None:
    log = f"test_a ok\ntest_b ok   [OK]\n tests finished: {count} passed, in 1 s"
    assert read_log(log, SYMPY) == {"test_a": status}
    log = f"PASSED t.py::a\nPASSED t.py::b[x y]\n== 1 failed, {count} passed in 1.00s ==\n"
    assert read_log(log, PYTEST) == {"t.py::a": status, "t.py::b[x y]": status}


@given(st.text(), st.sampled_from([DJANGO, PYTEST, SYMPY]))
def test_any_log_is_read(log: str, parser: str) -> None:
    assert set(read_log(log, parser).values()) <= {
        *("passed", "failed", "error", "skipped", "xfailed", "doubtful")
    }


@given(st.lists(st.sampled_from(["ok", "FAIL", "x ... ok", "PASSED t::a", "t::a PASSED", "\n"])))
def test_no_line_takes_back_a_failure(lines: list[str]) -> None:
    said = ["FAIL: test_x (m.C)", "FAILED t::a - why", "___ x.py:test_y ___"]
    log = "\n".join([*lines, "", *said, *lines])
    assert {"test_x (m.C)", "t::a", "test_y"} <= reported_failures(log)
    for parser in (DJANGO, PYTEST, SYMPY):
        assert read_log(log, parser)["t::a"] == "failed"


def reader(*options: str, log: bytes = b"test_a ok\n\xff") -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, *options, "-P", log_reader.__file__, SYMPY]
    return subprocess.run(program, input=log, capture_output=True, check=False)


@pytest.mark.processes
def test_the_reader_is_a_program() -> None:
    assert json.loads(reader().stdout) == {"test_a": "passed"}


@pytest.mark.processes
def test_the_error_without_swebench_says_what_to_install() -> None:
    without = reader("-S", "-E")  # without any installed package
    assert b"needs the package swebench; install it where" in without.stderr
    assert b"pip install --no-deps 'swebench" in without.stderr


@pytest.mark.processes
def test_loading_parsers_loads_nothing_else() -> None:
    code = (
        "import sys; from prorl_service.rewards.swe.log_reader import load_parser;"
        f"load_parser({DJANGO!r});"
        "print([name for name in sys.modules if name.partition('.')[0] in"
        " ('docker', 'modal', 'datasets', 'requests') or name == 'swebench.harness'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the watch ----------------------------------------------------------------------------------


def unittest_run(directory: Path, **environment: str) -> str:
    shutil.copy(HERE / "watched_tests.txt", directory / "test_it.py")
    done = subprocess.run(
        [sys.executable, "-m", "unittest", "-v", "test_it"],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.partition("Ran ")[0]  # the rest contains the time


@pytest.mark.processes
def test_the_watch_sees_what_raises_and_changes_nothing(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(guest_unittest_plugin.__file__, site / "sitecustomize.py")
    results = tmp_path / "results"
    watched = unittest_run(
        tmp_path, **{"PYTHONPATH": str(site), guest_unittest_plugin.RESULTS: str(results)}
    )
    assert watched == unittest_run(tmp_path, PYTHONPATH="")
    found = [json.loads(line) for line in results.read_text().splitlines()]
    raised = {test["names"][0].split()[0] for test in found if test["raised"]}
    assert raised == {
        *("test_fails", "test_raises", "test_skips", "test_fails_as_expected", "test_parts"),
        "test_inner",
    }
    calm = [test["names"] for test in found if not test["raised"]]
    assert calm == [
        ["test_ok (test_it.C.test_ok)", "What it does."],
        ["test_runner (test_it.C.test_runner)", ""],
    ]


# --- what canaries are made of ------------------------------------------------------------------

SOURCES = {
    "a/tests.py": (
        'class A:\n    def test_x(self):\n        """What x\n        does."""\n'
        "    def test_y(self): pass\nclass B(A):\n    def test_z(self):\n        pass\n"
    ),
    "b/tests.py": "def test_x():\n    pass\ndef helper():\n    pass\n",
    "c/tests.py": "print 'x'\n",
}


@pytest.mark.parametrize(
    ("id_", "tests"),
    [
        ("test_x (a.tests.A)", ["a/tests.py::A::test_x"]),
        ("test_x", ["b/tests.py::test_x"]),
        ("test_z (a.tests.B.test_z)", ["a/tests.py::B::test_z"]),
        ("What x", ["a/tests.py::A::test_x"]),
        ("a/tests.py::B::test_z[1]", ["a/tests.py::B::test_z"]),
        ("test_z (a.tests.Other)", ["a/tests.py::B::test_z"]),
        (
            "something",
            [
                *("a/tests.py::A::test_x", "a/tests.py::A::test_y", "a/tests.py::B::test_z"),
                "b/tests.py::test_x",
            ],
        ),
    ],
)
def test_ids_of_any_runner_are_found_in_the_files(id_: str, tests: list[str]) -> None:
    assert likely_tests(SOURCES, [id_]) == tests


def test_nothing_is_found_in_files_without_tests() -> None:
    assert likely_tests({"c.py": "x = 1\n"}, ["test_x"]) == []
