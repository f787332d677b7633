import asyncio
import io
import json
import re
import tarfile

import pytest

from prorl_service.sandbox.archives import load_archive
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from recipes.swebench import offline
from tests.recipes.swebench import reference_grader
from tests.recipes.swebench.instances import checkout, instance

pytestmark = pytest.mark.processes

IDS = [release.instance_id for release in offline.releases()]


@pytest.mark.parametrize("instance_id", IDS)
@pytest.mark.sampled(4)
async def test_both_graders_accept_the_reference_patch_and_no_other(instance_id: str) -> None:
    row = instance(instance_id)
    named = reference_grader.patches(row)
    async with BubblewrapProvider() as sandboxes:
        compared = await asyncio.gather(
            *(
                reference_grader.compare(row, name, patch, sandboxes)
                for name, patch in named.items()
            )
        )
    for one in compared:
        resolved = one.patch == "reference"
        assert one.ours.resolved is resolved, f"{one.patch}\n{one.ours.statuses}\n{one.ours.log}"
        assert one.second.resolved is resolved, f"{one.patch}\n{one.second.failed}"
        assert one.second.applied
    reference, nothing, _ = compared
    assert reference.ours.summary == (
        f"{instance_id}: resolved; fail-to-pass {len(row.FAIL_TO_PASS)}/{len(row.FAIL_TO_PASS)};"
        f" pass-to-pass {len(row.PASS_TO_PASS)}/{len(row.PASS_TO_PASS)}"
    )
    # They ran and failed: a test that cannot be collected says nothing about the bug.
    assert {nothing.ours.statuses[id_] for id_ in row.FAIL_TO_PASS} == {"failed"}
    assert nothing.ours.pass_to_pass == len(row.PASS_TO_PASS)
    assert set(nothing.second.failed) == set(row.FAIL_TO_PASS)


def test_a_row_is_small_and_keeps_the_answer_from_the_service() -> None:
    row = instance("tomlkit-0.13.1")
    task = row.task().model_dump_json()
    assert len(task) < 100_000
    added = [line[1:] for line in row.patch.splitlines() if re.match(r"\+ *\w.{20}", line)]
    assert added
    assert not [line for line in added if json.dumps(line)[1:-1] in task]


def test_the_repository_holds_one_commit_and_nothing_of_the_fix() -> None:
    row = instance("tomlkit-0.13.1")
    assert checkout(row.instance_id).git("rev-list", "--all").split() == [row.base_commit]
    fixed = set(re.findall(r"^index \w+\.\.(\w+)", row.patch + row.test_patch, re.MULTILINE))
    assert fixed
    assert row.environment.archive is not None
    with tarfile.open(fileobj=io.BytesIO(load_archive(row.environment.archive))) as archive:
        names = archive.getnames()
    objects = {name[-41:].replace("/", "") for name in names if "/.git/objects/" in name}
    assert row.base_commit in objects
    assert objects.isdisjoint(fixed)
