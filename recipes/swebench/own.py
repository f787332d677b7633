"""Your own instances: a bug of a repository on this machine, or rows in the normal form.

A row that names a `git` repository becomes an instance here: two commits, one with the bug and one
with the fix, become an archive and two patches. Rows of two source releases
(`recipes.swebench.offline.Release`) are built, others are taken as they are. docs/tasks.md
shows all three. Grades nothing.
"""

import io
import subprocess
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prorl_service.rewards.swe.patch import TEST_DIRECTORIES, TEST_FILE
from recipes.common.data.fields import Row, of_validation
from recipes.swebench import offline
from recipes.swebench.data.converted import Converted
from recipes.swebench.rows import SweInstance

GIT_TIMEOUT_S = 300


class Bug(BaseModel):
    """A bug and its fix, as two commits of a repository on this machine."""

    model_config = ConfigDict(extra="forbid")

    instance_id: str = Field(pattern=r"[A-Za-z0-9][A-Za-z0-9._\-]*")
    git: Path
    """The repository's directory."""
    base: str
    """Commit with the bug: what the model gets, without its history."""
    fix: str
    """Commit with the fix and with tests of it."""
    problem_statement: str = Field(min_length=1)
    test_files: list[str] = Field(min_length=1)
    """Files to give to pytest: those that have the tests of both lists."""
    FAIL_TO_PASS: list[str] = Field(min_length=1)
    PASS_TO_PASS: list[str] = []
    expected_xfails: list[str] = []
    needs: list[str] = []
    """Requirements for pip, in addition to pytest: with versions, or builds of an instance
    differ."""
    import_root: str = "."
    """Directory that the package is imported from, such as `src`."""
    pytest_arguments: list[str] = []
    license: str = ""


def is_own(row: Row) -> bool:
    """Returns whether the row has one of these forms."""
    built = row.has("git") or row.has("fixed_version")
    return built or isinstance(row.fields.get("environment"), Mapping)


def from_own(row: Row) -> Converted:
    """Converts a row. Raises `RowError`."""
    try:
        if row.has("git"):
            return Converted(build(Bug.model_validate(row.fields), offline.default_directory()))
        if row.has("fixed_version"):
            release = offline.Release.model_validate(row.fields)
            return Converted(offline.build(release, offline.default_directory()))
        return Converted(SweInstance.model_validate(row.fields))
    except ValidationError as error:
        raise row.error(*of_validation(error, "the row")) from error
    except (RuntimeError, ValueError) as error:
        raise row.error("it cannot be built", str(error)) from error


def build(bug: Bug, directory: Path) -> SweInstance:
    """Builds an instance. Raises `RuntimeError` if something cannot be fetched, `ValueError` if
    nothing can be graded."""
    base, fix = (_commit(bug.git, commit) for commit in (bug.base, bug.fix))
    release = offline.Release(
        instance_id=bug.instance_id,
        repo=bug.git.resolve().name,
        version=base[:12],
        fixed_version=fix[:12],
        license=bug.license,
        base_commit=base,
        FAIL_TO_PASS=bug.FAIL_TO_PASS,
        PASS_TO_PASS=bug.PASS_TO_PASS,
        expected_xfails=bug.expected_xfails,
        test_files=bug.test_files,
        src_root=bug.import_root,
        deps=bug.needs,
        gold_files=_source_files(bug, base, fix),
        gold_lines=0,
        args=bug.pytest_arguments,
        what_is_wrong="",
    )
    row = offline.build(release, directory, partial(_unpack, bug.git, base, fix))
    return row.model_copy(update={"problem_statement": bug.problem_statement})


def _source_files(bug: Bug, base: str, fix: str) -> list[str]:
    """Returns the files except tests that the fix changes. Raises `ValueError` if there are
    none."""
    listed = _git(bug.git, "diff", "--name-only", "-z", "--no-renames", base, fix)
    changed = [name for name in listed.decode(errors="surrogateescape").split("\0") if name]
    source = [name for name in changed if name not in bug.test_files and not _is_test(name)]
    if not source:
        raise ValueError(f"from {bug.base} to {bug.fix} only tests change, or nothing")
    return source


def _is_test(name: str) -> bool:
    path = PurePosixPath(name)
    in_tests = not TEST_DIRECTORIES.isdisjoint(path.parts)
    return in_tests or TEST_FILE.fullmatch(path.name) is not None or path.name == "conftest.py"


def _unpack(git: Path, base: str, fix: str, repository: Path, fixed: Path) -> None:
    for commit, target in ((base, repository), (fix, fixed)):
        packed = io.BytesIO(_git(git, "archive", "--format=tar", commit))
        with tarfile.open(fileobj=packed) as archive:
            archive.extractall(target, filter="data")


def _commit(git: Path, name: str) -> str:
    if not git.is_dir():
        raise ValueError(f"git: there is no directory {git}")
    commit = _git(git, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    return commit.decode().strip()


def _git(directory: Path, *arguments: str) -> bytes:
    command = ["git", "-c", "safe.directory=*", "-C", str(directory), *arguments]
    done = subprocess.run(command, capture_output=True, timeout=GIT_TIMEOUT_S, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise ValueError(f"git {arguments[0]} in {directory}: {said}")
    return done.stdout
