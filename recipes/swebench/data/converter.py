"""Converts rows of any data set, whose layout their columns tell."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import ValidationError

from prorl_service.agents.swe.data import SweData
from prorl_service.rewards.swe.patch import patched_files
from recipes.common.data.fields import Row, RowError, of_validation
from recipes.swebench.data import commands
from recipes.swebench.data.columns import Columns, unwrapped
from recipes.swebench.data.commands import Testing, named_files
from recipes.swebench.data.converted import Converted
from recipes.swebench.data.diffs import reversed_patch
from recipes.swebench.data.environments import (
    GradedBy,
    Tests,
    activation,
    by_log,
    by_recorder,
    grader_of,
    with_whole_ids,
)
from recipes.swebench.data.r2e_gym import from_r2e_gym
from recipes.swebench.own import from_own, is_own
from recipes.swebench.rows import SweInstance, unusable

SOURCE_LIKE_TESTS = {"pytest-dev/pytest": ["src/_pytest/", "src/pytest/", "_pytest/"]}
"""Source directories that are named like test tools."""


def convert(row: Row, graded_by: GradedBy, given: Mapping[str, str]) -> Converted:
    """Converts a row. `given`: columns instead of those of its layout.

    Raises `RowError`, also for an instance that the service would refuse.
    """
    try:
        converted = _converted(row, graded_by, given)
        SweData.model_validate(converted.instance.task().data)
        if reason := unusable(converted.instance):
            raise row.error("no patch can be graded honestly", reason)
    except RowError:
        raise
    except ValidationError as error:
        raise row.error(*of_validation(error, "the instance")) from error
    except ValueError as error:  # such as a command with an open quote
        raise row.error("the row cannot be converted", str(error)) from error
    return converted


def _converted(row: Row, graded_by: GradedBy, given: Mapping[str, str]) -> Converted:
    if not given and is_own(row):
        return from_own(row)
    inner = unwrapped(row)
    if not given and inner.has("parsed_commit_content"):
        return from_r2e_gym(inner)
    return from_columns(Columns(inner, given), graded_by)


def from_columns(columns: Columns, graded_by: GradedBy) -> Converted:
    """Raises `RowError`."""
    patch, bug, test_patch = _patches(columns)
    tests = Tests(columns.texts("f2p"), columns.texts("p2p"))
    if not tests.fail_to_pass:
        raise columns.row.error("f2p is empty")
    testing = _testing(columns, test_patch)
    place = {
        "repository": columns.text("repository"),
        "activate": activation(testing, columns.optional("activate")),
        "setup_patch": bug,
        "test_timeout_s": columns.text("timeout"),
    }
    by = grader_of(testing, tests, patch, graded_by)
    if by == "recorder":
        tests = with_whole_ids(tests)
        environment = by_recorder(testing, tests, named_files(test_patch), place)
    else:
        testing = replace(testing, log_parser=columns.parser(testing.log_parser))
        environment = by_log(testing, patch, place)
    has_tests = any(file.endswith(".py") for file in patched_files(test_patch))
    if not has_tests and (by == "log" or not bug):
        raise columns.row.error("test_patch has no Python file: no canary can be put in its tests")
    instance = SweInstance(
        instance_id=columns.text("id"),
        repo=columns.optional("repo"),
        version=columns.optional("version"),
        base_commit=columns.optional("commit"),
        problem_statement=columns.text("problem"),
        patch=patch,
        test_patch=test_patch,
        FAIL_TO_PASS=tests.fail_to_pass,
        PASS_TO_PASS=tests.pass_to_pass,
        image=columns.image(),
        environment=environment,
        allowed_files=SOURCE_LIKE_TESTS.get(columns.optional("repo"), []),
        license=columns.optional("license"),
    )
    return Converted(instance, tests.left_out)


def _patches(columns: Columns) -> tuple[str, str, str]:
    """Returns the fix, the bug to put in first, and the change of the tests."""
    bug = columns.optional("bug")
    if not bug:
        return columns.text("patch"), "", columns.text("test_patch")
    try:
        return reversed_patch(bug), bug, ""
    except ValueError as error:
        raise columns.row.error("bug cannot be reversed", str(error)) from error


def _testing(columns: Columns, test_patch: str) -> Testing:
    parser = columns.optional("parser")
    if given := columns.commands("test"):
        return Testing(_in_turn(given), parser, " && ".join(columns.commands("build")))
    if script := columns.optional("script"):
        return commands.of_script(columns.row, script, parser)
    repo, version = columns.optional("repo"), columns.optional("version")
    known = commands.of_table(columns.row, repo, version, test_patch)
    if known is None:
        raise columns.missing("test")
    return known


def _in_turn(given: Sequence[str]) -> str:
    """Returns a command that runs all, and fails with the status of the last that failed."""
    if len(given) == 1:
        return given[0]
    return "\n".join(["status=0", *(f"{one} || status=$?" for one in given), "exit $status"])
