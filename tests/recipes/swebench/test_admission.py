"""Admission of instances: only those that the reference patch resolves each time may be used."""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from prorl_service.rewards.swe.grade import SweOutcome, SweReport
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from recipes.swebench.grading import Admission, admit, sometimes
from recipes.swebench.rows import SweInstance
from tests.recipes.swebench.instances import checkout, instance

pytestmark = pytest.mark.processes


def row(instance_id: str = "texttable-1.6.4", **changes: Any) -> SweInstance:
    return instance(instance_id).model_copy(update=changes)


async def admitted(row: SweInstance) -> Admission:
    async with BubblewrapProvider() as sandboxes:
        return await admit(row, sandboxes, times=2)


async def test_a_sound_instance_is_admitted_unchanged() -> None:
    assert await admitted(row()) == Admission(row())


async def test_admission_adds_missing_expected_failures() -> None:
    forgotten = row("sqlparse-0.5.1", expected_xfails=[])
    assert await admitted(forgotten) == Admission(row("sqlparse-0.5.1"))


REFUSED: dict[str, Callable[[SweInstance], dict[str, Any]]] = {
    "never pass: .*gone": lambda row: {"PASS_TO_PASS": ["tests.py::gone"]},
    "without a fix 1 tests pass": lambda row: {
        "FAIL_TO_PASS": row.PASS_TO_PASS[:1],
        "PASS_TO_PASS": [],
    },
    "reference patch: .*: patch_failed": lambda row: {"patch": "no patch"},
    "test patch does not apply": lambda row: {"test_patch": "no patch"},
}


@pytest.mark.parametrize("reason", REFUSED)
async def test_an_instance_that_cannot_be_graded_is_refused(reason: str) -> None:
    admission = await admitted(row(**REFUSED[reason](row())))
    assert admission.row is None
    assert re.search(reason, admission.reason), admission.reason


class UnlikeNodes(BubblewrapProvider):
    """A provider in whose sandboxes every second grading, which takes two, may write only smaller
    files."""

    def __init__(self) -> None:
        super().__init__()
        self._file_mb = itertools.cycle([512, 512, 256, 256])

    def create(
        self, *, image: str | None, limits: SandboxLimits, user: str | None = None
    ) -> RemoteSandbox:
        return super().create(image=image, limits=replace(limits, file_mb=next(self._file_mb)))


FLAKY = """+
def test_flaky():
    import resource
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] >= 512 << 20
"""


async def test_a_flaky_test_is_removed_from_its_list() -> None:
    original, name = row(), "tests.py::test_flaky"
    tree = checkout(original.instance_id)
    tree.git("apply", stdin=original.test_patch)
    flaky = original.model_copy(
        update={
            "test_patch": tree.patch({original.file_of_tests: FLAKY}),
            "PASS_TO_PASS": [*original.PASS_TO_PASS, name],
        }
    )
    only = flaky.model_copy(update={"FAIL_TO_PASS": [name], "PASS_TO_PASS": []})
    async with UnlikeNodes() as sandboxes:
        admission = await admit(flaky, sandboxes, times=2)
        refused = await admit(only, sandboxes, times=2)
    kept = flaky.model_copy(update={"PASS_TO_PASS": original.PASS_TO_PASS})
    assert admission == Admission(kept, flaky=(name,))
    assert refused == Admission(None, reason="all tests to be fixed are flaky")


def test_a_test_is_flaky_if_it_passes_in_some_runs_only() -> None:
    def run(**statuses: str) -> SweReport:
        return SweReport(
            instance_id="i",
            outcome=SweOutcome.UNRESOLVED,
            fail_to_pass_total=1,
            pass_to_pass_total=1,
            statuses=statuses,
        )

    assert sometimes([run(a="failed", b="failed"), run(a="failed", c="error")]) == ("b", "c")
    assert sometimes([run(a="failed"), run(a="error")]) == ()
