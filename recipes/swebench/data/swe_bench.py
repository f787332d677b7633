"""Rows of SWE-bench (full, Lite, Verified), of SWE-Gym, and of SkyRL-v0, which wraps SWE-Gym's."""

from prorl_service.rewards.swe.patch import patched_files
from recipes.common.data.fields import Row
from recipes.swebench.data import commands
from recipes.swebench.data.converted import Converted
from recipes.swebench.data.environments import GradedBy, Tests, environment_of
from recipes.swebench.rows import SweInstance

SOURCE_LIKE_TESTS = {"pytest-dev/pytest": ["src/_pytest/", "src/pytest/", "_pytest/"]}
"""Source directories that are named like test tools."""


def from_swe_bench(row: Row, graded_by: GradedBy) -> Converted:
    """Converts a row. Raises `RowError`."""
    instance_id, repo = row.text("instance_id"), row.text("repo")
    patch, test_patch = row.text("patch"), row.text("test_patch")
    has_script = row.has("eval_script")
    testing = commands.of_script(row) if has_script else commands.of_table(row, test_patch)
    tests = Tests(row.texts("FAIL_TO_PASS"), row.texts("PASS_TO_PASS"))
    if not tests.fail_to_pass:
        raise row.error("FAIL_TO_PASS is empty")
    if not any(file.endswith(".py") for file in patched_files(test_patch)):
        raise row.error("test_patch has no Python file: no canary can be put among the tests")
    environment, tests = environment_of(testing, tests, patch, test_patch, graded_by)
    instance = SweInstance(
        instance_id=instance_id,
        repo=repo,
        version=row.text("version"),
        base_commit=row.text("base_commit"),
        problem_statement=row.text("problem_statement"),
        patch=patch,
        test_patch=test_patch,
        FAIL_TO_PASS=tests.fail_to_pass,
        PASS_TO_PASS=tests.pass_to_pass,
        image=row.text("image") if row.has("image") else image_of(instance_id, repo),
        environment=environment,
        allowed_files=SOURCE_LIKE_TESTS.get(repo, []),
    )
    return Converted(instance, tests.left_out)


def from_skyrl(row: Row, graded_by: GradedBy) -> Converted:
    """Converts `instance`: a row of SWE-Gym or, in the validation split, of SWE-bench Lite's
    development split.

    The rest of the row, a prompt, is not used.
    """
    return from_swe_bench(row.inner("instance"), graded_by)


def image_of(instance_id: str, repo: str) -> str:
    """Returns the name that the images' publisher gives."""
    owner, joint = ("xingyaoww", "_s_") if commands.is_swe_gym(repo) else ("swebench", "_1776_")
    name = instance_id.lower().replace("__", joint)
    return f"docker://{owner}/sweb.eval.x86_64.{name}:latest"
