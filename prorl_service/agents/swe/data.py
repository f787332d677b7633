"""`task.data` of the SWE agent: what it needs to set up and to grade one instance.

Field names are SWE-bench's where it has them. The reference patch and the problem are not included:
the patch is never sent to the service, the problem is the task's message.
"""

import re
from pathlib import PurePosixPath
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from prorl_service.rewards.swe.grade import Expected
from prorl_service.sandbox.archives import REFERENCE
from prorl_service.tools.registry import ToolNames


def _absolute(path: str) -> str:
    if not re.fullmatch(r"(/[A-Za-z0-9_.\-]+)+", path) or ".." in PurePosixPath(path).parts:
        raise ValueError("must be an absolute path of letters, digits, '_', '.' and '-'")
    return path


def _inside(path: str) -> str:
    if path.startswith(("/", "-")) or ".." in PurePosixPath(path).parts:
        raise ValueError("must be a path below the repository")
    return path


Absolute = Annotated[str, AfterValidator(_absolute)]
Inside = Annotated[str, AfterValidator(_inside)]


class SweEnvironment(BaseModel):
    """The repository's place in the sandbox, and the way its tests run there: by pytest with our
    recorder, or by a command whose log is read."""

    model_config = ConfigDict(extra="forbid")

    archive: str | None = Field(
        None,
        pattern=REFERENCE,
        description="Archive of a tree, unpacked at `unpack_at`, for tasks without an image of"
        " their own. Kept in the service's cache under its digest.",
    )
    unpack_at: Absolute = "/workspace"
    repository: Absolute = "/testbed"
    setup_patch: str = Field(
        "", description="Patch that puts a bug into the repository before its only commit."
    )
    activate: str = Field("", description="Shell command that puts the right Python on the path.")
    python: str = Field("python", description="Interpreter after `activate`, with pytest.")
    import_paths: list[Inside] = Field(
        [], description="Added to the import path; relative to the repository."
    )
    test_files: list[Inside] = Field([], description="Test files for pytest.")
    pytest_arguments: list[str] = []
    pytest_plugins: list[str] = Field([], description="Modules to load. No others are loaded.")
    installed_plugins: bool = Field(False, description="Also load plugins installed in the image.")
    test_command: str = Field(
        "",
        description="Shell command, run in the repository after `activate`, for other runners than"
        " pytest. Must exit with 1 when a test fails.",
    )
    log_parser: str = Field(
        "",
        description="Parser of `test_command`'s output: one of the package swebench for Python,"
        " such as parse_log_django.",
    )
    test_timeout_s: float = Field(
        240, gt=0, description="Seconds for both runs of all tests; then the patch is wrong."
    )

    @model_validator(mode="after")
    def _has_one_way_to_test(self) -> Self:
        of_pytest = (self.test_files, self.pytest_arguments, self.pytest_plugins, self.import_paths)
        if bool(self.test_command) != bool(self.log_parser):
            raise ValueError(
                "test_command and log_parser go together: give both, or leave both out"
            )
        if not self.test_command and not self.test_files:
            raise ValueError("give test_files for pytest, or test_command and log_parser")
        if self.test_command and any(of_pytest):
            raise ValueError(
                "give test_command and log_parser, or test_files, pytest_arguments, pytest_plugins"
                " and import_paths, which are for pytest as the service runs it"
            )
        return self


class SweData(BaseModel):
    model_config = ConfigDict(extra="forbid")

    instance_id: str = Field(min_length=1)
    test_patch: str = Field(
        description="Patch with the tests; empty where the repository has them already."
    )
    FAIL_TO_PASS: list[str] = Field(
        min_length=1, description="Test ids as pytest or the log parser gives them."
    )
    PASS_TO_PASS: list[str]
    expected_xfails: list[str] = Field(
        [],
        description="Tests of PASS_TO_PASS that are marked as expected to fail and do so with the"
        " reference patch: they must fail again.",
    )
    allowed_files: list[str] = Field(
        [],
        description="Paths to patch even if they look like tests: files that the reference patch"
        " changes, and directories, with a slash at the end.",
    )
    environment: SweEnvironment
    tools: ToolNames = ["bash", "str_replace_editor", "submit"]

    @model_validator(mode="after")
    def _is_gradable(self) -> Self:
        if set(self.FAIL_TO_PASS) & set(self.PASS_TO_PASS):
            raise ValueError("a test is in both FAIL_TO_PASS and PASS_TO_PASS")
        if not set(self.expected_xfails) <= set(self.PASS_TO_PASS):
            raise ValueError("a test of expected_xfails is not in PASS_TO_PASS")
        return self

    def expected(self) -> Expected:
        """Returns the expected results."""
        xfails = frozenset(self.expected_xfails)
        return Expected(self.instance_id, self.FAIL_TO_PASS, self.PASS_TO_PASS, xfails=xfails)
