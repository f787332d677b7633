"""A user's own data set, end to end: a repository of two commits, its row, admission, grading."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prorl_service.errors import InvalidRequest
from prorl_service.rewards.swe.grade import SweOutcome
from prorl_service.rewards.swe.patch import patched_files
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from recipes.swebench import offline
from recipes.swebench.grading import graded
from recipes.swebench.own import Bug, build
from recipes.swebench.patches import NOTHING_PATCH
from recipes.swebench.prepare import Options, prepare
from recipes.swebench.rows import SweInstance, read_rows, unusable

pytestmark = pytest.mark.processes

BEFORE = {
    "src/calc/__init__.py": "def half(x):\n    return x // 2\n",
    "src/calc/tests/helper.py": "WANTED = 1\n",
    "src/calc/tests/test_half.py": """\
from calc import half

from .helper import WANTED


def test_even():
    assert half(2) == WANTED
""",
    "src/calc/tests/__init__.py": "",
}
AFTER = {
    "src/calc/__init__.py": "def half(x):\n    return x / 2\n",
    "src/calc/tests/helper.py": "WANTED, ODD = 1, 1.5\n",
    "src/calc/tests/test_half.py": """\
from calc import half

from .helper import ODD, WANTED


def test_even():
    assert half(2) == WANTED


def test_odd():
    assert half(3) == ODD
""",
}
TESTS = "src/calc/tests/test_half.py"


def commit(repository: Path, files: dict[str, str], name: str) -> None:
    for path, text in files.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        (repository / path).write_text(text)
    who = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    for words in (["add", "-A"], [*who, "commit", "-q", "-m", name], ["tag", name]):
        subprocess.run(["git", *words], cwd=repository, check=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made = tmp_path / "calc"
    made.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=made, check=True)
    commit(made, BEFORE, "bug")
    commit(made, AFTER, "fix")
    return made


def fields(repository: Path, **changed: Any) -> dict[str, Any]:
    row = {
        "instance_id": "calc-1",
        "git": str(repository),
        "base": "bug",
        "fix": "fix",
        "problem_statement": "half(3) is 1.",
        "test_files": [TESTS],
        "FAIL_TO_PASS": [f"{TESTS}::test_odd"],
        "PASS_TO_PASS": [f"{TESTS}::test_even"],
        "import_root": "src",
    }
    return {**row, **changed}


def built(repository: Path, **changed: Any) -> SweInstance:
    bug = Bug.model_validate(fields(repository, **changed))
    return build(bug, offline.default_directory())


def given(directory: Path, *rows: dict[str, Any]) -> Path:
    path = directory / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "recipes.swebench.prepare", "--dataset", "own", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


async def test_a_repository_becomes_instances_that_are_admitted_and_graded(
    repository: Path, tmp_path: Path
) -> None:
    flaw = fields(repository, instance_id="calc-2", PASS_TO_PASS=[f"{TESTS}::test_gone"])
    rows = given(tmp_path, fields(repository), flaw)
    done = command("--from", str(rows), "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "calc-1: admitted" in done.stderr
    [row] = read_rows(tmp_path / "out/rows.jsonl")
    assert row.instance_id == "calc-1"
    rejected = json.loads((tmp_path / "out/rejected.jsonl").read_text())
    assert "test_gone" in rejected["detail"]
    async with BubblewrapProvider() as sandboxes:
        assert (await graded(row, row.patch, sandboxes)).resolved
        assert (await graded(row, b"", sandboxes)).outcome is SweOutcome.EMPTY_PATCH
        assert (await graded(row, NOTHING_PATCH, sandboxes)).outcome is SweOutcome.UNRESOLVED
    # Prepared rows are valid input as well.
    again = Options("own", tmp_path / "again", path=tmp_path / "out/rows.jsonl")
    await prepare(again)
    assert read_rows(tmp_path / "again/rows.jsonl") == [row]


def test_tests_inside_the_package_do_not_bring_the_fix(repository: Path) -> None:
    row = built(repository)
    assert patched_files(row.patch) == ["src/calc/__init__.py"]
    assert patched_files(row.test_patch) == ["src/calc/tests/helper.py", TESTS]
    assert row.problem_statement == "half(3) is 1."


WRONG: dict[str, dict[str, Any]] = {
    "the row is invalid: FAIL_TO_PASS: List should have at least 1 item": {"FAIL_TO_PASS": []},
    "the row is invalid: bse: Extra inputs are not permitted": {"bse": "x"},
    "it cannot be built: git rev-parse in .*: fatal: Needed a single revision": {"fix": "nowhere"},
    "it cannot be built: git: there is no directory /nowhere": {"git": "/nowhere"},
    "it cannot be built: from bug to bug only tests change, or nothing": {"fix": "bug"},
}


async def test_each_bad_row_is_reported_in_one_line(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        fields(repository, instance_id=f"calc-{n}", **row) for n, row in enumerate(WRONG.values())
    ]
    good = fields(repository, instance_id="good")
    await prepare(Options("own", tmp_path / "out", path=given(tmp_path, *rows, good)))
    lines = capsys.readouterr().err.splitlines()
    for number, (reason, line) in enumerate(zip(WRONG, lines, strict=True)):
        assert re.match(rf"row {number + 1} \(calc-{number}\): {reason}", line), line


async def test_a_file_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="from: your own data set is in a file"):
        await prepare(Options("own", tmp_path / "out"))


async def test_a_row_whose_tests_bring_the_fix_is_rejected(
    repository: Path, tmp_path: Path
) -> None:
    row = built(repository)
    assert unusable(row) == ""
    both = row.model_copy(update={"test_patch": row.test_patch + row.patch})
    path = given(tmp_path, both.model_dump(mode="json"))
    with pytest.raises(InvalidRequest, match=r"patch and test_patch both change src/calc/__init"):
        await prepare(Options("own", tmp_path / "out", path=path))
    brought = row.environment.model_copy(update={"test_files": ["src"]})
    assert "only files among the tests" in unusable(row.model_copy(update={"environment": brought}))
    assert unusable(row.model_copy(update={"patch": ""})) == "patch changes no file"


def test_the_offline_builder_refuses_tests_that_bring_the_fix() -> None:
    flat = {"pkg/__init__.py": "X = 1\n", "pkg/test_pkg.py": "def test(): pass\n"}
    release = offline.releases()[0].model_copy(
        update={"test_files": ["pkg/__init__.py"], "gold_files": ["pkg/__init__.py"], "deps": []}
    )

    def unpack(base: Path, fixed: Path) -> None:
        for tree, text in ((base, "X = 1\n"), (fixed, "X = 2\n")):
            (tree / "pkg").mkdir(parents=True)
            for name, content in {**flat, "pkg/__init__.py": text}.items():
                (tree / name).write_text(content)

    with pytest.raises(ValueError, match=r"patch and test_patch both change pkg/__init__\.py"):
        offline.build(release, offline.default_directory(), unpack)
