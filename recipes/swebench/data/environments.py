"""Chooses how an instance of SWE-bench's form is graded: by our recorder in pytest, or by a log.

The recorder trusts less (docs/swe.md) and grades what it can: tests that pytest runs by themselves,
by their full ids, without a build. The log is for the rest, with the command and the parser that
made the data set's ids. All that is known of images is where SWE-bench puts things.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prorl_service.agents.swe.data import SweEnvironment
from prorl_service.rewards.swe.patch import patched_files
from recipes.swebench.data.commands import Testing, named_files

GradedBy = Literal["recorder", "log"]

ACTIVATE = "source /opt/miniconda3/bin/activate testbed"
TEST_TIMEOUT_S = 1800.0
"""Time limit of the tests; SWE-bench's own."""

COMPILED = (".pyx", ".pxd", ".pxi", ".c", ".cc", ".cpp", ".cu", ".f", ".f90", ".h", ".hpp")


@dataclass(frozen=True, slots=True)
class Tests:
    __test__ = False  # for pytest

    fail_to_pass: list[str]
    pass_to_pass: list[str]
    left_out: tuple[str, ...] = ()


def environment_of(
    testing: Testing, tests: Tests, patch: str, test_patch: str, graded_by: GradedBy
) -> tuple[SweEnvironment, Tests]:
    """Returns the environment, and the tests that its grader can tell apart."""
    builds = "setup.py" in testing.install or any(
        file.endswith(COMPILED) for file in patched_files(patch)
    )
    words = shlex.split(testing.command)
    whole = with_whole_ids(tests)
    if graded_by == "log" or builds or words[0] != "pytest":
        return _by_log(testing, builds=builds), tests
    if not whole.fail_to_pass:
        return _by_log(testing, builds=False), tests
    directives = {*named_files(test_patch)}
    arguments = [word for word in words[1:] if word not in directives]
    return _by_recorder(testing, whole, arguments), whole


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


def _by_recorder(testing: Testing, tests: Tests, arguments: Sequence[str]) -> SweEnvironment:
    return SweEnvironment(
        activate=_activation(testing),
        test_files=files_of([*tests.fail_to_pass, *tests.pass_to_pass]),
        pytest_arguments=list(arguments),
        installed_plugins=True,
        test_timeout_s=TEST_TIMEOUT_S,
    )


def _by_log(testing: Testing, *, builds: bool) -> SweEnvironment:
    install = (testing.install,) if builds and testing.install else ()
    quietly = [f"({command}) > /dev/null 2>&1" for command in (*testing.setup, *install)]
    return SweEnvironment(
        activate=_activation(testing),
        test_command="; ".join([*quietly, testing.command]),
        log_parser=testing.log_parser,
        test_timeout_s=TEST_TIMEOUT_S,
    )


def _activation(testing: Testing) -> str:
    exports = list(testing.exports)
    if re.search(r"pip install \.( |$)", testing.install):
        # The installed copy would hide what the patch changes.
        exports.append("export PYTHONPATH=$PWD:${PYTHONPATH:-}")
    return "\n".join([ACTIVATE, *exports])
