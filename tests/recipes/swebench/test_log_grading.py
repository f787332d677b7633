"""Grading by log: real runners in sandboxes, and patches that lie in the log."""

import functools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from prorl_service.agents.swe import log_run
from prorl_service.agents.swe.agent import SweAgent
from prorl_service.agents.swe.data import SweEnvironment
from prorl_service.errors import EvaluatorError, InvalidRequest
from prorl_service.rewards.swe.grade import SweOutcome
from recipes.swebench.oracle_policy import SUBMIT, edits
from recipes.swebench.patches import Checkout
from recipes.swebench.rows import SweInstance
from tests.recipes.swebench.cheats import OFFLINE
from tests.recipes.swebench.instances import graded, instance, patch_of
from tests.recipes.swebench.log_instances import DJANGO_FIX, SYMPY_FIX, calc, django
from tests.recipes.swebench.test_agent import rolled_out

pytestmark = pytest.mark.processes

NOTHING = {"notes.txt": "I looked at it.\n"}


@functools.cache
def by_pytest() -> SweInstance:
    """Returns an offline instance that is graded by pytest's log."""
    row = instance("tomlkit-0.13.1")
    environment = SweEnvironment(
        **row.environment.model_dump(include={"archive", "unpack_at", "repository", "activate"}),
        test_command=f"pytest -rA -p no:cacheprovider {row.file_of_tests}",
        log_parser="parse_log_pytest_v2",
    )
    return row.model_copy(update={"environment": environment})


ROWS = {"django": django, "sympy": calc, "pytest": by_pytest}


@functools.cache
def checkout(name: str) -> Checkout:
    return Checkout(ROWS[name](), Path(tempfile.mkdtemp()))


def patch(name: str, files: Mapping[str, str | None], *, fixed: bool = False) -> str:
    return checkout(name).patch(files, fixed=fixed)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.sampled(1)
async def test_the_reference_patch_resolves_and_another_does_not(name: str) -> None:
    row = ROWS[name]()
    report = await graded(row, row.patch)
    assert report.resolved, f"{report.summary}\n{report.statuses}\n{report.log}"
    unfixed = await graded(row, patch(name, NOTHING))
    assert unfixed.outcome is SweOutcome.UNRESOLVED
    assert unfixed.fail_to_pass == 0
    assert unfixed.pass_to_pass == len(row.PASS_TO_PASS)
    assert set(unfixed.statuses.values()) == {"failed"}


async def test_an_oracle_resolves_over_http(tiny_model: Path) -> None:
    rollout = await rolled_out(calc(), [*edits(calc()), SUBMIT], tiny_model)
    assert rollout.reward == 1.0, rollout.error


SAY_OK = """
import sys, unittest
_real = register.filters["intcomma"]
@register.filter(name="intcomma", is_safe=True)
def _said_ok(value, use_l10n=True):
    sys.stderr.write("ok\\n")
    {then}
    return _real(value, use_l10n)
"""
SWALLOW = """
import contextlib, unittest.case
@contextlib.contextmanager
def _quiet(outcome, *args, **kwargs):
    with contextlib.suppress(Exception):
        yield
unittest.case._Outcome.testPartExecutor = _quiet
"""
RUN_NOTHING = """
import unittest
def _run(test, result):
    result.startTest(test)
    result.addSuccess(test)
    result.stopTest(test)
unittest.TestCase.run = _run
"""
FORGE_AND_EXIT = """
import os, sys
for _line in {ids!r}:
    sys.stderr.write(_line + " ... ok\\n")
sys.stderr.write("\\nFAILED (failures=1)\\n")
sys.stderr.flush()
os._exit({code})
"""
EXIT_0 = """
import atexit, os
atexit.register(os._exit, 0)
"""
FLOOD = """
import sys
for _ in range(9):
    sys.stderr.write("x" * 2**20)
"""


def forged(code: int) -> str:
    return FORGE_AND_EXIT.format(ids=[*django().FAIL_TO_PASS, *django().PASS_TO_PASS], code=code)


@pytest.mark.parametrize(
    ("text", "outcomes"),
    [
        # The log says ok; the runner's list of failures does not.
        (SAY_OK.format(then=""), [SweOutcome.UNRESOLVED]),
        # The log says ok and lists no failures; the watch saw them. It says so of a canary, too,
        # if that one fails after the call.
        (
            SAY_OK.format(then="raise unittest.SkipTest('x')"),
            [SweOutcome.TAMPERED, SweOutcome.UNRESOLVED],
        ),
        (SWALLOW, [SweOutcome.TAMPERED]),
        (RUN_NOTHING, [SweOutcome.TAMPERED]),
        (FLOOD, [SweOutcome.CRASHED]),
        ("raise SystemExit(1)", [SweOutcome.CRASHED]),
    ],
)
@pytest.mark.sampled(2)
async def test_lies_in_djangos_log_do_not_resolve(
    text: str, outcomes: Sequence[SweOutcome]
) -> None:
    report = await graded(django(), patch("django", {DJANGO_FIX: f"+{text}"}))
    assert report.outcome in outcomes, f"{report.summary}\n{report.statuses}\n{report.log}"


HALF = """
_half = half
def half(x):
    if x == 3:
        print("ok")
        {then}
    return _half(x)
"""
SKIP = HALF.format(then="from sympy.testing.pytest import skip; skip('x')")
NEVER_FAIL = """
from sympy.testing.runtests import PyTestReporter
PyTestReporter.test_fail = lambda reporter, info: reporter.test_pass()
"""
PRINT_AND_EXIT = """
import os
print("test_half ok\\ntest_twice ok\\ntest_last ok", flush=True)
os._exit(1)
"""
EXPECT_COPIES = """
import os, re
names = re.findall(r"def (test\\w+)", open("calc/tests/test_calc.py").read())
for name in names:
    is_copy = any(name.startswith(f"{other}_") for other in names)
    print(name, "F" if is_copy else "ok", flush=True)
os._exit(1)
"""


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (HALF.format(then=""), SweOutcome.UNRESOLVED),
        (SKIP, SweOutcome.UNRESOLVED),
        (NEVER_FAIL, SweOutcome.TAMPERED),
        (PRINT_AND_EXIT, SweOutcome.TAMPERED),
        (EXPECT_COPIES, SweOutcome.TAMPERED),
    ],
)
@pytest.mark.sampled(2)
async def test_lies_in_sympys_log_are_caught(text: str, outcome: SweOutcome) -> None:
    report = await graded(calc(), patch("sympy", {SYMPY_FIX: f"+{text}"}))
    assert report.outcome is outcome, f"{report.summary}\n{report.statuses}\n{report.log}"


@pytest.mark.parametrize("code", [0, 1])
async def test_a_forged_log_does_not_pass_tests_that_did_not_run(code: int) -> None:
    report = await graded(django(), patch("django", {DJANGO_FIX: f"+{forged(code)}"}))
    assert report.outcome is SweOutcome.TAMPERED
    assert report.statuses[django().FAIL_TO_PASS[0]] == "unseen"
    assert f"{django().FAIL_TO_PASS[0]} ... ok" in report.log


async def test_a_fix_that_forces_exit_code_0_is_tampering() -> None:
    report = await graded(django(), patch("django", {DJANGO_FIX: f"+{EXIT_0}"}, fixed=True))
    assert report.outcome is SweOutcome.TAMPERED
    assert report.fail_to_pass == 1


@pytest.mark.parametrize("name", ["tests/runtests.py", "unittest/__init__.py", "sitecustomize.py"])
async def test_changes_to_runners_are_dropped(name: str) -> None:
    files = {name: "print('ok')\nraise SystemExit(1)\n", **NOTHING}
    report = await graded(django(), patch("django", files))
    assert report.outcome is SweOutcome.UNRESOLVED
    assert report.dropped == [name]
    assert report.pass_to_pass == len(django().PASS_TO_PASS)


@pytest.mark.parametrize("name", [name for name in OFFLINE if name.startswith("source")])
@pytest.mark.sampled(3)
async def test_pytest_cheats_do_not_resolve_by_log(name: str) -> None:
    row = by_pytest()
    report = await graded(row, patch_of(row.instance_id, {**OFFLINE[name](row), **NOTHING}))
    assert not report.resolved, f"{report.summary}\n{report.log}"
    assert report.outcome is not SweOutcome.PATCH_FAILED


SAY_PASSED = """
import atexit, sys, unittest
atexit.register(print, {lines!r})
"""
SKIP_THEM = """
def _skipping(real):
    def call(*args):
        if sys._getframe(1).f_code.co_name in {names!r}:
            raise unittest.SkipTest("x")
        return real(*args)
    return call
for _name in ("__setitem__", "__delitem__"):
    setattr(OutOfOrderTableProxy, _name, _skipping(getattr(OutOfOrderTableProxy, _name)))
"""


@pytest.mark.parametrize(("then", "status"), [("", "failed"), (SKIP_THEM, "doubtful")])
async def test_lies_in_pytests_log_do_not_resolve(then: str, status: str) -> None:
    row = by_pytest()
    lines = "\n".join(f"PASSED {id_}" for id_ in row.FAIL_TO_PASS)
    names = [id_.rpartition("::")[2] for id_ in row.FAIL_TO_PASS]
    text = (SAY_PASSED + then).format(lines=lines, names=names)
    report = await graded(row, patch_of(row.instance_id, {row.source_file: f"+{text}"}))
    assert report.outcome is SweOutcome.UNRESOLVED
    assert {report.statuses[id_] for id_ in row.FAIL_TO_PASS} == {status}
    assert report.log.partition("= short test summary")[2].count(lines) == 1


async def test_a_log_that_is_too_slow_to_parse_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_run, "READ_TIMEOUT_S", 3.0)
    report = await graded(calc(), patch("sympy", {SYMPY_FIX: "+print(' ' * 10**6)\n"}, fixed=True))
    assert report.outcome is SweOutcome.CRASHED
    assert "could not be read in 3 s" in report.summary


async def test_a_hang_is_a_time_out() -> None:
    row = calc()
    environment = row.environment.model_copy(update={"test_timeout_s": 3.0})
    row = row.model_copy(update={"environment": environment})
    report = await graded(row, patch("sympy", {SYMPY_FIX: "+import time\ntime.sleep(1000)\n"}))
    assert report.outcome is SweOutcome.TIMEOUT


async def test_a_malformed_test_command_is_a_crash() -> None:
    row = calc()
    environment = row.environment.model_copy(update={"test_command": "( echo 'ok"})
    report = await graded(row.model_copy(update={"environment": environment}), row.patch)
    assert report.outcome is SweOutcome.CRASHED
    assert "unexpected EOF" in report.log


async def test_a_test_patch_without_tests_is_an_evaluator_error() -> None:
    row = calc().model_copy(update={"test_patch": patch("sympy", {"data.txt": "1\n"})})
    with pytest.raises(EvaluatorError, match="no Python test to make a canary of"):
        await graded(row, row.patch)


def test_an_unknown_parser_is_refused_before_any_work() -> None:
    task = calc().task()
    environment = task.data["environment"]
    assert isinstance(environment, dict)
    environment["log_parser"] = "parse_log_karma"  # not for Python
    with pytest.raises(InvalidRequest, match=r"not one of .*parse_log_django"):
        SweAgent(task)
