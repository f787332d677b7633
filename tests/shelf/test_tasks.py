"""A run by task: sums over groups of several versions, against sums over the listed rollouts."""

from collections import defaultdict
from statistics import fmean

import pytest

from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas.views import (
    GroupOutcome,
    GroupQuery,
    RolloutQuery,
    RolloutRow,
    TaskQuery,
    TaskSort,
)
from tests.server.scored_agent import scored

GROUPS = [
    ("a0", "a", (0, 0)),
    ("a1", "a", (0, 1)),
    ("b0", "b", (1, 1, None)),
    ("c0", "c", (None, None)),
    ("c1", "c", (0.5, 0.25)),
]


@pytest.fixture
async def listed(client: AsyncRolloutClient) -> AsyncRolloutClient:
    groups = [scored(name, *rewards, task_id=task) for name, task, rewards in GROUPS]
    await client.submit(groups)
    await client.wait([one for group in groups for one in group.rollout_ids()], 60)
    await client.acknowledge(["a0", "b0"])
    return client


async def test_rows_are_sums_over_the_listed_rollouts(listed: AsyncRolloutClient) -> None:
    by_task: dict[str, list[RolloutRow]] = defaultdict(list)
    for row in (await listed.rollouts(RolloutQuery(limit=500))).rollouts:
        by_task[row.task_id].append(row)
    groups = (await listed.groups(GroupQuery(limit=500))).groups
    found = await listed.tasks()
    assert found.matches == len(found.tasks) == len(by_task) == 3
    for task in found.tasks:
        rows = by_task[task.task_id]
        rewards = [row.reward for row in rows if row.reward is not None]
        own = [group for group in groups if group.task_id == task.task_id]
        scores = [one for one in own if one.outcome is not GroupOutcome.UNSCORED]
        assert (task.rollouts, task.groups, task.agent) == (len(rows), len(own), "scored")
        assert task.failed == sum(row.error is not None for row in rows)
        assert task.mean_reward == pytest.approx(fmean(rewards))
        assert task.success_rate == pytest.approx(fmean(reward >= 1 for reward in rewards))
        informative = fmean(one.outcome is GroupOutcome.INFORMATIVE for one in scores)
        assert task.informative_share == pytest.approx(informative)
        assert [point.policy_version for point in task.trend] == [0]
        assert task.last_ended_at == max(row.ended_at or 0 for row in rows)


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        (TaskSort.WORST, ["c", "a", "b"]),
        (TaskSort.BEST, ["b", "a", "c"]),
        (TaskSort.MOST_FAILED, ["c", "b", "a"]),
        (TaskSort.LEAST_INFORMATIVE, ["b", "a", "c"]),
    ],
)
async def test_each_order(listed: AsyncRolloutClient, sort: TaskSort, expected: list[str]) -> None:
    assert [one.task_id for one in (await listed.tasks(TaskQuery(sort=sort))).tasks] == expected


async def test_filters(listed: AsyncRolloutClient) -> None:
    found = await listed.tasks(TaskQuery(task_id="[ab]*"))
    assert found.tasks == []
    first = await listed.tasks(TaskQuery(limit=1))
    assert (len(first.tasks), first.matches) == (1, 3)
    assert (await listed.tasks(TaskQuery(agent="math"))).tasks == []
    assert (await listed.tasks(TaskQuery(run="another"))).tasks == []
