"""A run of another service, whose files are next to this one's, compared with this one's run."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas.views import TaskQuery
from tests.cli.called import called, printed
from tests.server.application import Settings, serving
from tests.server.scored_agent import scored
from tests.shelf.shelved import shelf_at, shelved, submitted


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    return replace(settings, journal=tmp_path / "today.sqlite", run="today", resume=True)


async def test_a_run_of_another_shelf_is_compared(settings: Settings, tmp_path: Path) -> None:
    async with shelf_at(tmp_path / "yesterday.sqlite", run="yesterday") as (journal, shelf):
        await shelved(journal, shelf, submitted("old", n=2, task_id="q1"), reward=0.5, version=3)
        (tmp_path / "notes.shelf").write_text("no database")
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            await client.submit([scored("new", 1, task_id="q1")])
            await client.wait(["new.0"], 60)
            assert await client.runs() == ["today", "yesterday"]
            (version,) = (await client.training(run="yesterday")).versions
            assert (version.policy_version, version.mean_reward) == (3, 0.5)
            (task,) = (await client.tasks(TaskQuery(run="yesterday"))).tasks
            assert (task.task_id, task.rollouts) == ("q1", 2)
            assert [one.rollouts for one in (await client.training()).versions] == [1]
            assert (await client.training(run="never")).versions == []
            await shelved(journal, shelf, submitted("newer"), version=4, reward=1)  # still at work
            assert len((await client.training(run="yesterday")).versions) == 2
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        assert len((await client.training(run="yesterday")).versions) == 2, "it has ended"


async def test_prorl_compares_them(settings: Settings, tmp_path: Path) -> None:
    async with shelf_at(tmp_path / "yesterday.sqlite", run="yesterday") as (journal, shelf):
        await shelved(journal, shelf, submitted("old", n=2, task_id="q1"), reward=0)
        await shelved(journal, shelf, submitted("same", task_id="q2"), reward=1)
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        groups = [scored("new", 1, 0, task_id="q1"), scored("same", 1, task_id="q2")]
        await client.submit(groups)
        await client.wait([one for group in groups for one in group.rollout_ids()], 60)
        shown = await asyncio.to_thread(printed, "compare", "yesterday", "--url", url)
        refused = await asyncio.to_thread(called, "compare", "never", "--url", url)
    lines = [line.split() for line in shown.splitlines()]
    assert ["0", "3", "3", "67%", "33%", "0.6667", "0.3333"] in lines
    assert "1 of 2 tasks of both runs changed" in shown
    assert lines[-1] == ["q1", "50%", "0%", "+50"]
    assert (refused.returncode, "runs: today, yesterday" in refused.stderr) == (2, True)
