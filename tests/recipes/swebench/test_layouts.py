"""Rows in published layouts, graded by their log parsers on a real repository with a bug."""

import functools
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from prorl_service.rewards.swe.grade import SweOutcome
from recipes.common.data.fields import Row
from recipes.swebench import offline
from recipes.swebench.data.converter import convert
from recipes.swebench.own import Bug, build
from recipes.swebench.patches import NOTHING_PATCH
from recipes.swebench.rows import SweInstance
from tests.recipes.swebench.data import published
from tests.recipes.swebench.data.published import Fields
from tests.recipes.swebench.instances import graded
from tests.recipes.swebench.log_instances import ACTIVATE
from tests.recipes.swebench.test_own import commit

pytestmark = pytest.mark.processes

TESTS = "tests/test_half.py"
CASE = """\
import unittest

from calc import half


class HalfTest(unittest.TestCase):
    def test_even(self):
        self.assertEqual(half(2), 1)

    def test_more(self):
        self.assertEqual(half(4), 2)
"""
ODD = """
    def test_odd(self):
        self.assertEqual(half(3), 1.5)
"""
BY_PYTEST = "tests/test_half.py::HalfTest::{}"
BY_UNITTEST = "{0} (tests.test_half.HalfTest.{0})"


@functools.cache
def bug() -> SweInstance:
    """Returns an instance made of two commits."""
    with tempfile.TemporaryDirectory() as directory:
        git = Path(directory, "calc")
        git.mkdir()
        subprocess.run(["git", "init", "-q", "-b", "main"], cwd=git, check=True)
        before = {"calc.py": "def half(x):\n    return x // 2\n", "tests/__init__.py": ""}
        commit(git, {**before, TESTS: CASE}, "bug")
        commit(git, {"calc.py": "def half(x):\n    return x / 2\n", TESTS: CASE + ODD}, "fix")
        made = Bug(
            instance_id="octo__project-1234",
            git=git,
            base="bug",
            fix="fix",
            problem_statement="half(3) is 1.",
            test_files=[TESTS],
            FAIL_TO_PASS=[BY_PYTEST.format("test_odd")],
        )
        return build(made, offline.default_directory())


def row(made: Any, ids: str, **changed: Any) -> Fields:
    fields = made(patch=bug().patch, test_patch=bug().test_patch, **changed)
    lists = ["test_odd"], ["test_even", "test_more"]
    for kind, names in zip(("FAIL_TO_PASS", "PASS_TO_PASS"), lists, strict=True):
        listed = [ids.format(name) for name in names]
        fields |= {kind: listed} if kind in fields else {kind.lower(): str(listed)}
    return dict(fields)


def configured(command: str, parser: str) -> Fields:
    return {"install_config": {"test_cmd": command, "log_parser": parser}}


def rebench(command: str, parser: str) -> Fields:
    return row(published.rebench, BY_PYTEST, **configured(command, parser))


LONG = "pytest -rA --tb=short -vv -o console_output_style=classic --no-header"
UNITTEST = configured("python -m unittest -v tests.test_half", "parse_log_django")
TWICE = [f"pytest -rA {TESTS} -k odd", f"pytest -rA {TESTS} -k 'not odd'"]
ROWS = {
    "pytest": lambda: rebench("pytest --no-header -rA --tb=line", "parse_log_pytest"),
    "pytest_options": lambda: rebench("pytest -rA", "parse_log_pytest_options"),
    "pytest_v2": lambda: rebench(f"{LONG} --color=yes", "parse_log_pytest_v2"),
    "seaborn": lambda: rebench("pytest --no-header -rA", "parse_log_seaborn"),
    "unittest": lambda: row(published.rebench_v2, BY_UNITTEST, **UNITTEST),
    "live": lambda: row(published.live, BY_PYTEST, test_cmds=TWICE),
    "pro": lambda: row(published.pro, BY_PYTEST, selected_test_files_to_run=f'["{TESTS}"]'),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.sampled(3)
async def test_the_fix_resolves_and_nothing_else_does(name: str) -> None:
    published_row = convert(Row(ROWS[name](), "row 1"), "log", {}).instance
    place = bug().environment.model_dump(include={"archive", "unpack_at", "repository"})
    environment = published_row.environment.model_copy(update={**place, "activate": ACTIVATE})
    assert environment.log_parser
    instance = published_row.model_copy(update={"image": None, "environment": environment})
    report = await graded(instance, instance.patch)
    assert report.resolved, f"{report.summary}\n{report.statuses}\n{report.log}"
    unfixed = await graded(instance, NOTHING_PATCH)
    assert unfixed.outcome is SweOutcome.UNRESOLVED
    assert (unfixed.fail_to_pass, unfixed.pass_to_pass) == (0, 2)
