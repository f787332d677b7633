"""Lists that people see over HTTP: rollouts, groups, versions, agents; and the status."""

import asyncio
from typing import Any

import pytest

from prorl_service.agents.description import describe
from prorl_service.agents.registry import AgentRegistry
from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import (
    Blame,
    RolloutState,
    Stage,
)
from prorl_service.schemas.views import GroupOutcome, GroupQuery, RolloutQuery
from prorl_service.tools.registry import all_tools
from tests.server.application import group
from tests.server.scored_agent import scored

# --- lists --------------------------------------------------------------------------------------


async def test_common_questions_take_one_call_each(client: AsyncRolloutClient) -> None:
    await client.submit([scored("a", 0, 1), scored("b", None, 1, 1), scored("c", 0, 0)])
    await client.wait(["a.0", "a.1", "b.0", "b.1", "b.2", "c.0", "c.1"], 60)
    await client.acknowledge(["a", "b", "c"])
    # Which rollouts failed in step 0, and why?
    failed = await client.rollouts(RolloutQuery(state=[RolloutState.FAILED], policy_version=0))
    (one,) = failed.rollouts
    assert one.error is not None
    assert (one.rollout_id, one.error.blame, one.error.message) == (
        "b.0",
        Blame.EVALUATOR,
        "it fails, as it should",
    )
    # Which groups teach nothing?
    dull = GroupQuery(outcome=[GroupOutcome.ALL_ZERO, GroupOutcome.ALL_ONE])
    assert {row.group_id: row.outcome for row in (await client.groups(dull)).groups} == {
        "b": GroupOutcome.ALL_ONE,
        "c": GroupOutcome.ALL_ZERO,
    }
    # How do siblings differ?
    text = await client.text("a.0")
    assert [sibling.reward for sibling in text.siblings] == [0, 1]
    # Is it getting better?
    (version,) = (await client.training()).versions
    assert (version.rollouts, version.failed, version.informative_share) == (7, 1, 1 / 3)
    assert (await client.training(agent="math")).versions == []


@pytest.mark.slow
async def test_pages_stay_complete_and_unique_while_rollouts_end_and_arrive(
    client: AsyncRolloutClient,
) -> None:
    early = [scored(f"early{i}", 0, 1, 1, sleep=0.02 * i) for i in range(20)]
    await client.submit(early)
    is_over = asyncio.Event()

    async def come() -> None:
        for number in range(60):
            await client.submit([scored(f"late{number}", 1)])
            await asyncio.sleep(0.02)
        await client.wait([one for group in early for one in group.rollout_ids()], 60)
        is_over.set()

    coming = asyncio.create_task(come())
    passes = 0
    while not is_over.is_set() or not passes:
        listed: list[str] = []
        query: RolloutQuery | None = RolloutQuery(limit=7)
        while query is not None:
            page = await client.rollouts(query)
            listed += [one.rollout_id for one in page.rollouts]
            query = RolloutQuery(limit=7, before=page.next) if page.next else None
        assert len(listed) == len(set(listed))
        assert set(listed) >= {one for group in early for one in group.rollout_ids()}
        groups: list[str] = []
        by_group: GroupQuery | None = GroupQuery(limit=5)
        while by_group is not None:
            found = await client.groups(by_group)
            groups += [one.group_id for one in found.groups]
            by_group = GroupQuery(limit=5, before=found.next) if found.next else None
        assert len(groups) == len(set(groups))
        assert set(groups) >= {group.group_id for group in early}
        passes += 1
    await coming


async def test_a_group_in_flight_shows_all_its_rollouts(client: AsyncRolloutClient) -> None:
    mixed = scored("g", 1, 0, None, sleep=0.0)
    mixed.task.data["sleep"] = [0, 1000, 0]
    await client.submit([mixed])
    await client.wait(["g.0", "g.2"], 60)
    (row,) = (await client.groups()).groups
    assert row.states == [RolloutState.DONE, RolloutState.RUNNING, RolloutState.FAILED]
    assert (row.rewards, row.outcome, row.blames) == (
        [1.0, None, None],
        GroupOutcome.OPEN,
        {Blame.EVALUATOR: 1},
    )
    for query in (
        GroupQuery(state=[RolloutState.RUNNING]),
        GroupQuery(state=[RolloutState.FAILED]),
        GroupQuery(blame=[Blame.EVALUATOR], outcome=[GroupOutcome.OPEN]),
        GroupQuery(reward_min=1),
        GroupQuery(task_id="t", agent=["scored"]),
    ):
        assert (await client.groups(query)).groups == [row]
    for query in (
        GroupQuery(state=[RolloutState.CANCELLED]),
        GroupQuery(outcome=[GroupOutcome.ALL_ONE]),
        GroupQuery(reward_max=0.5),
        GroupQuery(agent=["math"]),
        GroupQuery(run="another"),
    ):
        assert (await client.groups(query)).groups == []
    running = RolloutQuery(state=[RolloutState.RUNNING])
    assert [one.rollout_id for one in (await client.rollouts(running)).rollouts] == ["g.1"]
    await client.cancel(["g.1"])


async def test_the_status_has_the_figures_that_the_page_needs(client: AsyncRolloutClient) -> None:
    await client.submit([scored("g", 1, None), scored("slow", 1, sleep=1000)])
    await client.wait(["g.0", "g.1"], 60)
    await client.acknowledge(["g"])
    status = await client.status()
    assert status.ended == {RolloutState.DONE: 1, RolloutState.FAILED: 1}
    assert status.failures == {Blame.EVALUATOR: 1}
    assert status.running[Stage.RUN] == 1
    assert status.model == "stub"
    assert status.started_at is not None
    assert status.sandboxes is not None
    assert status.shelf is not None
    assert 0 < status.shelf.bytes < status.shelf.limit_bytes
    (engine,) = status.backends
    assert engine.sampled_tokens > 0
    assert engine.max_calls == 256
    await client.cancel(["slow.0"])


# --- agents -------------------------------------------------------------------------------------


async def test_agents_are_described(client: AsyncRolloutClient) -> None:
    agents = {one.name: one for one in await client.agents()}
    math, own = agents["math"], agents["scored"]
    assert math.is_built_in
    assert math.data_schema is not None
    assert math.data_schema["required"] == ["answer"]
    assert [tool["function"]["name"] for tool in math.tools] == [*all_tools()]
    assert "The agent for mathematics" in math.description
    assert (own.is_built_in, own.data_schema, own.source) == (
        False,
        None,
        "tests.server.scored_agent:Scored",
    )
    assert own.description.startswith("An agent that follows the lists `scores`")


def test_built_in_agents_declare_their_data_and_all_offered_tools() -> None:
    registry = AgentRegistry()
    data: dict[str, dict[str, Any]] = {
        "math": {"answer": "1"},
        "reasoning_gym": {"generator": "chain_sum", "seed": 1},
        "stem": {"answer": "1"},
        "code": {"tests": {"inputs": ["1"], "outputs": ["1"]}},
        "swe": {
            "instance_id": "i",
            "test_patch": "",
            "FAIL_TO_PASS": ["t"],
            "PASS_TO_PASS": [],
            "environment": {"test_files": ["t.py"]},
        },
    }
    assert set(registry.names) >= data.keys()
    for name, values in data.items():
        agent = registry[name]
        assert agent.data_model is not None
        values["tools"] = [*all_tools()]
        agent.data_model.model_validate(values)
        task = group().task.model_copy(update={"agent": name, "data": values})
        offered = {tool["function"]["name"] for tool in agent(task).prompt().tools}
        assert offered == {tool["function"]["name"] for tool in describe(agent).tools}
