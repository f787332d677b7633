"""Chooses how an instance of SWE-bench's form is graded: by our recorder in pytest, or by a log.

The recorder trusts less (docs/swe.md) and grades what it can: tests that pytest runs by themselves,
by their full ids, without a build. The log is for the rest, with the command and the parser that
made the data set's ids.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prorl_service.agents.swe.data import SweEnvironment
from prorl_service.rewards.swe.patch import patched_files
from recipes.swebench.data.commands import Testing

GradedBy = Literal["recorder", "log"]

Place = Mapping[str, Any]
"""Fields of `SweEnvironment` that do not depend on the grader."""

COMPILED = (".pyx", ".pxd", ".pxi", ".c", ".cc", ".cpp", ".cu", ".f", ".f90", ".h", ".hpp")


@dataclass(frozen=True, slots=True)
class Tests:
    __test__ = False  # for pytest

    fail_to_pass: list[str]
    pass_to_pass: list[str]
    left_out: tuple[str, ...] = ()


def grader_of(testing: Testing, tests: Tests, patch: str, wanted: GradedBy) -> GradedBy:
    """Returns `wanted`, or the log where the recorder cannot grade."""
    is_whole = bool(with_whole_ids(tests).fail_to_pass)
    recorded = is_whole and pytest_arguments(testing.command) is not None
    return wanted if recorded and not _builds(testing, patch) else "log"


def pytest_arguments(command: str) -> list[str] | None:
    """Returns the arguments of a command that runs pytest and nothing else; None for others."""
    words = shlex.split(command)
    if words[:3] == ["python", "-m", "pytest"]:
        words = words[2:]
    return None if words[0] != "pytest" or re.search(r"[;&|<>`$\n]", command) else words[1:]


def _builds(testing: Testing, patch: str) -> bool:
    """Returns whether the repository is built before its tests."""
    is_compiled = any(file.endswith(COMPILED) for file in patched_files(patch))
    return is_compiled or "setup.py" in testing.install


def with_whole_ids(tests: Tests) -> Tests:
    """Drops ids that were cut at a blank or are not a test's; writes the others as pytest does."""
    cut = [*filter(_is_cut, [*tests.fail_to_pass, *tests.pass_to_pass])]
    return Tests(
        [_escaped(id_) for id_ in tests.fail_to_pass if not _is_cut(id_)],
        [_escaped(id_) for id_ in tests.pass_to_pass if not _is_cut(id_)],
        (*tests.left_out, *cut),
    )


def files_of(ids: Sequence[str]) -> list[str]:
    return sorted({id_.partition("::")[0] for id_ in ids})


def _is_cut(id_: str) -> bool:
    return "::" not in id_ or id_.count("[") > id_.count("]")


def _escaped(id_: str) -> str:
    """Escapes parameters as pytest does, which writes them in ASCII."""
    name, bracket, parameters = id_.partition("[")
    return name + bracket + parameters.encode("ascii", "backslashreplace").decode()


def by_recorder(
    testing: Testing, tests: Tests, named: Sequence[str], place: Place
) -> SweEnvironment:
    """`named`: other files that the command may name."""
    files = files_of([*tests.fail_to_pass, *tests.pass_to_pass])
    arguments = pytest_arguments(testing.command) or []
    return SweEnvironment(
        test_files=files,
        pytest_arguments=[word for word in arguments if word not in {*named, *files}],
        installed_plugins=True,
        **place,
    )


def by_log(testing: Testing, patch: str, place: Place) -> SweEnvironment:
    install = [testing.install] if testing.install and _builds(testing, patch) else []
    quietly = [f"({command}) > /dev/null 2>&1" for command in (*testing.setup, *install)]
    return SweEnvironment(
        test_command="; ".join([*quietly, testing.command]),
        log_parser=testing.log_parser,
        **place,
    )


def activation(testing: Testing, activate: str) -> str:
    lines = [activate, *testing.exports]
    if re.search(r"pip install \.( |$)", testing.install):
        # The installed copy would hide what the patch changes.
        lines.append("export PYTHONPATH=$PWD:${PYTHONPATH:-}")
    return "\n".join(filter(None, lines))
