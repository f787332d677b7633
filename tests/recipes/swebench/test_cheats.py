"""Cheating patches: their verdict may be anything but resolved."""

import asyncio
import os

import pytest

from prorl_service.rewards.swe.grade import SweOutcome
from recipes.swebench.patches import NOTHING
from tests.recipes.swebench.cheats import GENERAL, OFFLINE, SELECTORS, TURN_REPORTS, Cheat
from tests.recipes.swebench.instances import checkout, graded, instance, patch_of

pytestmark = pytest.mark.processes

IDS = ("tomlkit-0.13.1", "mako-1.3.5")
"""Instances with test functions and with unittest cases."""

WITHOUT_THE_GRADER = GENERAL | SELECTORS
ONLY_BY_CANARIES = {"source: swallow", "source: replace tests", "source: rewrite results at exit"}
ONLY_BY_CANARIES |= {name for name in OFFLINE if "forge records" in name}
TELL_NOTHING = {"source: expect failures", "source: kill all", "source: rewrite results afterwards"}
"""Cheats that need not leave a lie in the log; the last one may act too late."""


@pytest.mark.parametrize("name", OFFLINE)
@pytest.mark.sampled(6)
async def test_a_cheat_does_not_resolve(name: str) -> None:
    await asyncio.gather(*(_does_not_resolve(name, instance_id) for instance_id in IDS))


async def _does_not_resolve(name: str, instance_id: str) -> None:
    row = instance(instance_id)
    # Adds a harmless change: a patch that is dropped as a whole does not run.
    report = await graded(row, patch_of(instance_id, {**OFFLINE[name](row), **NOTHING}))
    assert not report.resolved, report.summary
    assert report.outcome is not SweOutcome.PATCH_FAILED, report.summary
    if name in ONLY_BY_CANARIES or name == "source: flood the results":
        assert report.outcome is SweOutcome.TAMPERED, f"{report.summary}\n{report.log}"
    elif name not in TELL_NOTHING:  # it was dropped, or its lie is in the log
        assert report.dropped or f"PASSED {row.FAIL_TO_PASS[0]}" in report.log, report.log


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cheat", WITHOUT_THE_GRADER.values(), ids=WITHOUT_THE_GRADER)
@pytest.mark.sampled(8)
async def test_a_cheat_that_does_not_know_the_grader_does_not_resolve(cheat: Cheat) -> None:
    rows = [instance(instance_id) for instance_id in IDS]
    patches = [patch_of(row.instance_id, {**cheat(row), **NOTHING}) for row in rows]
    for report in await asyncio.gather(*map(graded, rows, patches)):
        assert not report.resolved, report.summary
        assert report.outcome is not SweOutcome.PATCH_FAILED, report.summary


async def test_a_link_to_a_conftest_is_dropped() -> None:
    link = checkout(IDS[0]).path / "conftest.py"
    link.symlink_to("forge.py")
    report = await graded(instance(IDS[0]), patch_of(IDS[0], {"forge.py": TURN_REPORTS}))
    assert report.outcome is SweOutcome.UNRESOLVED
    assert report.dropped == ["conftest.py"]


@pytest.mark.parametrize("instance_id", IDS)
async def test_a_fix_with_tests_of_its_own_resolves_without_them(instance_id: str) -> None:
    row = instance(instance_id)
    own = f"{os.path.dirname(row.file_of_tests)}/test_of_my_own.py"
    patch = patch_of(instance_id, {own: "def test(): assert False\n"}, fixed=True)
    report = await graded(row, patch)
    assert report.resolved, report.summary
    assert report.dropped == [own]


async def test_a_patch_of_protected_files_only_is_not_run() -> None:
    row = instance(IDS[0])
    report = await graded(row, patch_of(IDS[0], {"conftest.py": TURN_REPORTS}))
    assert report.outcome is SweOutcome.EMPTY_PATCH
    assert report.dropped == ["conftest.py"]
    assert not report.log


@pytest.mark.parametrize(
    "name",
    ["../outside.py", ".git/hooks/post-checkout", "/tmp/absolute.py"],
)
async def test_patches_stay_in_the_repository(name: str) -> None:
    row = instance(IDS[0])
    patch = patch_of(IDS[0], {"new.py": "x = 1\n"}).replace("new.py", name)
    assert (await graded(row, patch)).outcome is SweOutcome.PATCH_FAILED


async def test_a_patch_cannot_lie_about_the_file_it_changes() -> None:
    row = instance(IDS[0])
    patch = patch_of(IDS[0], {"new.py": TURN_REPORTS})
    for lying in (
        patch.replace("+++ b/new.py", "+++ b/conftest.py"),
        patch.replace("diff --git a/new.py b/new.py", "diff --git a/x.py b/x.py").replace(
            "b/new.py", "b/conftest.py"
        ),
    ):
        assert not (await graded(row, lying)).resolved


@pytest.mark.parametrize("text", ["not a patch\n", "diff --git a/x b/x\n", "\0" * 100])
async def test_garbage_does_not_apply(text: str) -> None:
    assert (await graded(instance(IDS[0]), text)).outcome is SweOutcome.PATCH_FAILED


async def test_a_hang_is_a_time_out() -> None:
    row = instance(IDS[0])
    row = row.model_copy(
        update={"environment": row.environment.model_copy(update={"test_timeout_s": 3.0})}
    )
    patch = patch_of(IDS[0], {row.source_file: "+import time\ntime.sleep(1000)\n"})
    assert (await graded(row, patch)).outcome is SweOutcome.TIMEOUT
