"""Grading features that published data sets need, on offline instances."""

from typing import Any

import pytest

from prorl_service.rewards.swe.grade import SweOutcome
from recipes.swebench.rows import SweInstance
from tests.recipes.swebench.instances import graded, instance, patch_of

pytestmark = pytest.mark.processes

ID = "tomlkit-0.13.1"


def changed(**environment: Any) -> SweInstance:
    row = instance(ID)
    return row.model_copy(
        update={"environment": row.environment.model_copy(update=environment), "test_patch": ""}
    )


async def test_tests_already_in_the_repository_need_no_test_patch() -> None:
    row = changed(setup_patch=instance(ID).test_patch)
    report = await graded(row, row.patch)
    assert report.resolved, f"{report.summary}\n{report.log}"
    nothing = patch_of(ID, {"notes.txt": "I looked at it.", "tests/test_items.py": "x = 1\n"})
    report = await graded(row, nothing)
    assert report.outcome is SweOutcome.UNRESOLVED
    assert report.dropped == ["tests/test_items.py"]


async def test_installed_plugins_can_be_enabled() -> None:
    tests = instance(ID).test_patch
    row = changed(setup_patch=tests, pytest_plugins=[], installed_plugins=True)
    report = await graded(row, row.patch)
    assert report.resolved, f"{report.summary}\n{report.log}"
    without = changed(setup_patch=tests, pytest_plugins=[])
    assert "unrecognized arguments: --timeout" in (await graded(without, row.patch)).log
