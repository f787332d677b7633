"""Rows of SWE-smith: `patch` is a bug, which its publisher keeps as a branch.

The image has the repository without the bug and without its branch, and a sandbox has no network:
`setup_patch` puts the bug in. The reference fix is its reverse. The tests are those of the
repository and stay there; SWE-smith hides those that fail from the model.
"""

from prorl_service.agents.swe.data import SweEnvironment
from recipes.common.data.fields import Row
from recipes.swebench.data.converted import Converted
from recipes.swebench.data.diffs import reversed_patch
from recipes.swebench.data.environments import ACTIVATE, GradedBy, Tests, files_of, with_whole_ids
from recipes.swebench.rows import SweInstance

TEST_TIMEOUT_S = 300.0


def from_swe_smith(row: Row, graded_by: GradedBy) -> Converted:
    """Converts a row. `graded_by` does not matter: the row does not say how its log is read.

    Raises `RowError`.
    """
    repo, _, commit = row.text("repo").removeprefix("swesmith/").rpartition(".")
    bug = row.text("patch")
    try:
        fix = reversed_patch(bug)
    except ValueError as error:
        raise row.error("patch cannot be reversed", str(error)) from error
    tests = _tests(row)
    instance = SweInstance(
        instance_id=row.text("instance_id"),
        repo=repo,
        version=commit,
        base_commit=commit,
        problem_statement=row.text("problem_statement"),
        patch=fix,
        test_patch="",
        FAIL_TO_PASS=tests.fail_to_pass,
        PASS_TO_PASS=tests.pass_to_pass,
        image=_image(row.text("image_name")),
        environment=SweEnvironment(
            activate=ACTIVATE,
            setup_patch=bug,
            test_files=files_of([*tests.fail_to_pass, *tests.pass_to_pass]),
            installed_plugins=True,
            test_timeout_s=TEST_TIMEOUT_S,
        ),
    )
    return Converted(instance, tests.left_out)


def _tests(row: Row) -> Tests:
    given = Tests(row.texts("FAIL_TO_PASS"), row.texts("PASS_TO_PASS"))
    if not all(id_.partition("::")[0].endswith(".py") for id_ in given.fail_to_pass):
        raise row.error("FAIL_TO_PASS has an id that is not pytest's", given.fail_to_pass[0])
    tests = with_whole_ids(given)
    if not tests.fail_to_pass:
        raise row.error("FAIL_TO_PASS has no whole id")
    return tests


def _image(name: str) -> str:
    owner = "" if "/" in name else "jyangballin/"
    return f"docker://{owner}{name.lower().replace('__', '_1776_')}"
