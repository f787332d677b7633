"""One normal form for instances of all data sets, with SWE-bench's field names, and their tasks.

The reference patch is in the row and not in the task.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict

from prorl_service.agents.swe.agent import SweAgent
from prorl_service.agents.swe.data import SweData, SweEnvironment
from prorl_service.rewards.swe.patch import Change, is_protected, patched_files
from prorl_service.schemas import Message, Task


class SweInstance(BaseModel):
    """`base_commit` is that of the repository as it is built or published."""

    model_config = ConfigDict(extra="forbid")

    instance_id: str
    repo: str
    version: str
    base_commit: str
    problem_statement: str
    patch: str
    test_patch: str
    FAIL_TO_PASS: list[str]
    PASS_TO_PASS: list[str]
    expected_xfails: list[str] = []
    image: str | None = None
    environment: SweEnvironment
    allowed_files: list[str] = []
    """More files that a patch may change though they look like tests: `SweData.allowed_files`."""
    license: str = ""

    def task(self, options: Mapping[str, Any] = MappingProxyType({})) -> Task:
        """Returns the task for the service's `swe` agent. `options`: other fields of `SweData`."""
        data = SweData(
            instance_id=self.instance_id,
            test_patch=self.test_patch,
            FAIL_TO_PASS=self.FAIL_TO_PASS,
            PASS_TO_PASS=self.PASS_TO_PASS,
            expected_xfails=self.expected_xfails,
            allowed_files=[*patched_files(self.patch), *self.allowed_files],
            environment=self.environment,
            **options,
        )
        return Task(
            task_id=self.instance_id,
            agent=SweAgent.name,
            messages=[Message(role="user", content=self.problem_statement)],
            data=data.model_dump(mode="json"),
            image=self.image,
        )

    @property
    def source_file(self) -> str:
        """First Python file that the reference patch changes: a module that the tests import."""
        return next(file for file in patched_files(self.patch) if file.endswith(".py"))

    @property
    def file_of_tests(self) -> str:
        """File of the first test that is to be fixed."""
        return self.FAIL_TO_PASS[0].partition("::")[0]


def unusable(row: SweInstance) -> str:
    """Returns why no patch could be graded honestly; empty for a row that can be used.

    A file that both patches change would be put back: then the tests bring the fix, and a patch
    that fixes nothing resolves.
    """
    fixed, tested = patched_files(row.patch), patched_files(row.test_patch)
    if not fixed:
        return "patch changes no file"
    if both := sorted({*fixed} & {*tested}):
        return f"patch and test_patch both change {both[0]}"
    tests = {*tested, *row.environment.test_files}
    ordinary = (Change(path, "100644", "100644") for path in fixed)
    allowed = [*fixed, *row.allowed_files]
    if all(is_protected(one, allowed=allowed, tests=tests) for one in ordinary):
        return f"patch changes only files among the tests, put back: {', '.join(fixed[:3])}"
    return ""


def write_rows(path: Path, instances: Iterable[SweInstance]) -> None:
    path.write_text("".join(f"{instance.model_dump_json()}\n" for instance in instances))


def read_rows(path: Path) -> list[SweInstance]:
    # Not splitlines(): it also splits at characters that JSON does not escape.
    lines = path.read_text().split("\n")
    return [SweInstance.model_validate_json(line) for line in lines if line]
