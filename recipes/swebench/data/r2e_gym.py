"""Rows of R2E-Gym-Subset: a commit as JSON, tests of its own, and each test's result after it.

R2E-Gym requires the recorded result of every test, so failing tests must continue to fail. Here
FAIL_TO_PASS and PASS_TO_PASS are the tests that passed after the commit, split by their result
before it; the others are left out. The row has the tests, so a test patch brings them, as for
SWE-bench; the image's copy of them is removed before the model sees it.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from pydantic import BaseModel

from prorl_service.agents.swe.data import SweEnvironment
from recipes.common.data.fields import Row
from recipes.swebench.data.converted import Converted
from recipes.swebench.data.diffs import file_diff
from recipes.swebench.data.environments import Tests, files_of
from recipes.swebench.rows import SweInstance

TESTS = "r2e_tests"
PYTHON = "/testbed/.venv/bin/python -W ignore"
ACTIVATE = (
    f"rm -rf /{TESTS}",
    "export PATH=/testbed/.venv/bin:$PATH",
    "export PYTHONWARNINGS=ignore::UserWarning,ignore::SyntaxWarning",
)
TEST_TIMEOUT_S = 300.0
"""Time limit of the tests; R2E-Gym's own."""

Files = dict[str, str]


class _File(BaseModel):
    path: str


class _Header(BaseModel):
    file: _File


class _FileDiff(BaseModel):
    header: _Header
    old_file_content: str
    new_file_content: str
    is_binary_file: bool = False
    minus_file: _File | None = None
    plus_file: _File | None = None


class _Commit(BaseModel):
    old_commit_hash: str
    file_diffs: list[_FileDiff]


class _Execution(BaseModel):
    test_file_names: list[str]
    test_file_codes: list[str]
    old_commit_res_stdout: str = ""


def from_r2e_gym(row: Row) -> Converted:
    """Converts a row for the recorder: no parser of swebench reads these names.

    Raises `RowError`.
    """
    repo, commit = row.text("repo_name"), row.model("parsed_commit_content", _Commit)
    run = row.model("execution_result_content", _Execution)
    files = _test_files(row, run)
    tests = _tests(row, run, files)
    instance = SweInstance(
        instance_id=f"{repo}__{row.text('commit_hash')}",
        repo=repo,
        version=row.text("commit_hash"),
        base_commit=commit.old_commit_hash,
        problem_statement=_problem(row),
        patch=_source_patch(row, commit),
        test_patch="".join(file_diff(path, None, code) for path, code in files.items()),
        FAIL_TO_PASS=tests.fail_to_pass,
        PASS_TO_PASS=tests.pass_to_pass,
        image=f"docker://{row.text('docker_image')}",
        environment=_environment(repo, tests),
    )
    return Converted(instance, tests.left_out)


def _environment(repo: str, tests: Tests) -> SweEnvironment:
    headless = repo == "orange3"
    return SweEnvironment(
        activate="\n".join([*ACTIVATE, *(["export QT_QPA_PLATFORM=minimal"] if headless else [])]),
        python=f"xvfb-run --auto-servernum {PYTHON}" if headless else PYTHON,
        test_files=files_of([*tests.fail_to_pass, *tests.pass_to_pass]),
        pytest_arguments=["-o", "addopts="] if repo == "pandas" else [],
        installed_plugins=True,
        test_timeout_s=TEST_TIMEOUT_S,
    )


def _problem(row: Row) -> str:
    text = row.text("problem_statement")
    marked = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", text, re.DOTALL)
    return (marked[1] if marked else text).strip()


def _source_patch(row: Row, commit: _Commit) -> str:
    """Returns the patch of all files except tests. The row does not have binary files."""
    patch = "".join(
        file_diff(
            diff.header.file.path,
            _content(diff.old_file_content, diff.minus_file),
            _content(diff.new_file_content, diff.plus_file),
        )
        for diff in commit.file_diffs
        if not diff.is_binary_file and not _is_test(diff.header.file.path)
    )
    if not patch:
        raise row.error("the commit changes only tests")
    return patch


def _content(text: str, side: _File | None) -> str | None:
    nothing = text == "/dev/null" or (side is not None and side.path == "/dev/null")
    return None if nothing else text


def _is_test(path: str) -> bool:
    """Applies R2E-Gym's own rule."""
    parts = PurePosixPath(path).parts
    return (
        path.endswith("_test.py")
        or parts[-1].startswith("test_")
        or not {"tests", "Tests", "test", "Test"}.isdisjoint(parts)
    )


def _test_files(row: Row, run: _Execution) -> Files:
    names, codes = run.test_file_names, run.test_file_codes
    if len(names) != len(codes):
        raise row.error("test_file_names and test_file_codes differ in length")
    if any(name.endswith("_runner.py") for name in names):
        raise row.error("the tests have a runner of their own")
    return {
        f"{TESTS}/{PurePosixPath(name).name}": code for name, code in zip(names, codes, strict=True)
    }


def _tests(row: Row, run: _Execution, files: Files) -> Tests:
    expected = _statuses(row.inner("expected_output_json").fields)
    before = _summary(row, run.old_commit_res_stdout)
    passed = {name: _id(row, name, files) for name, how in expected.items() if how == "PASSED"}
    fixed = [id_ for name, id_ in passed.items() if before.get(name) != "PASSED"]
    if not fixed:
        raise row.error("no test passes only after the commit")
    kept = [id_ for id_ in passed.values() if id_ not in fixed]
    return Tests(fixed, kept, tuple(name for name in expected if name not in passed))


def _statuses(statuses: Mapping[str, str]) -> dict[str, str]:
    plain = {re.sub(r"\x1b\[\d+m", "", name): how for name, how in statuses.items()}
    return {name.split(" - ")[0]: how for name, how in plain.items() if name}


def _summary(row: Row, log: str) -> dict[str, str]:
    """Reads statuses by name from the end of pytest's output, as R2E-Gym does."""
    plain = re.sub(r"\x1b\[[0-9;]*m|\r", "", log)
    _, found, summary = plain.partition("short test summary info")
    if not found:
        raise row.error("there is no result of the tests before the commit")
    tests = re.findall(r"^(PASSED|FAILED|ERROR) \S+?::(.*)$", summary, re.MULTILINE)
    return _statuses({name.replace("::", "."): how for how, name in tests})


def _id(row: Row, name: str, files: Files) -> str:
    """Returns pytest's id of a test that R2E-Gym calls `Class.method[parameters]`."""
    plain, bracket, parameters = name.partition("[")
    names = plain.split(".")
    having = [path for path, code in files.items() if _defines(code, names)]
    if len(having) != 1:
        raise row.error("a test is not in exactly one file", f"{name} is in {len(having)}")
    return "::".join([having[0], *names]) + bracket + parameters


def _defines(code: str, names: list[str]) -> bool:
    """Returns whether the code has this function or class; methods can be inherited."""
    try:
        body = ast.parse(code).body
    except SyntaxError:  # code of another Python version: search the text
        return re.search(rf"^(async )?(def|class) {re.escape(names[0])}\b", code, re.M) is not None
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name == names[0]
        for node in body
    )
