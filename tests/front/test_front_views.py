"""A front shows what all its services do: its own lists, and the text of what runs from them."""

import asyncio
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.schemas import RolloutState
from prorl_service.schemas.views import GroupQuery, RolloutQuery
from prorl_service.testing import StubEngine
from tests.front.test_front import WAIT_S, ids_of, until_both_run, until_empty
from tests.server.application import until
from tests.server.scored_agent import scored

pytestmark = pytest.mark.processes


async def test_lists_and_texts_cover_all_services_and_outlive_acknowledgement(
    services: list[local.LocalProcess], client: AsyncRolloutClient
) -> None:
    groups = [scored(f"g{i}", 0, 1, None, sleep=0.2) for i in range(6)]
    await client.submit(groups)
    await until_both_run(services)
    everywhere = await client.rollouts()
    assert {one.rollout_id for one in everywhere.rollouts} == set(ids_of(groups))
    await client.wait(ids_of(groups), WAIT_S)
    await client.acknowledge([group.group_id for group in groups])
    await until_empty(*services)
    listed = await client.groups(GroupQuery(state=[RolloutState.FAILED]))
    assert {row.group_id for row in listed.groups} == {group.group_id for group in groups}
    assert all(row.rewards == [0, 1, None] for row in listed.groups)
    for rollout_id in ids_of(groups):
        text = await client.text(rollout_id)
        assert [one.sampled_tokens for one in text.turns] == [3]
        assert text.rollout.turns == 1
        assert text.rollout.run == everywhere.rollouts[0].run
        assert (await client.tokens(rollout_id)).ids[-3:-1] == [5, 6]
    (version,) = (await client.training()).versions
    assert (version.rollouts, version.failed, version.groups) == (18, 6, 6)
    assert {one.name for one in (await client.status()).services} == {"a", "b"}
    for service in services:
        async with AsyncRolloutClient(service.url) as behind:
            rows = (await behind.rollouts()).rollouts
            assert rows
            assert not any(row.has_content for row in rows), "the front keeps it, once"


async def test_the_text_of_what_runs_is_the_service_s_that_has_it(
    services: list[local.LocalProcess], client: AsyncRolloutClient, engine: StubEngine
) -> None:
    slow = scored("slow", 1, 1, sleep=0)
    await client.submit([scored("ended", 1)])
    await client.wait(["ended.0"], WAIT_S)
    engine.latency_s = 3600
    await client.submit([slow])

    async def is_shown() -> bool:
        try:
            return (await client.text("slow.0")).rollout.state is RolloutState.RUNNING
        except ServiceCallError as error:
            if error.http_status != 503:  # between two services it is nobody's
                raise
            return False

    await until(is_shown)
    text = await client.text("slow.0")
    assert text.prompt[0].content == "Go on."
    assert [one.rollout_id for one in text.siblings] == ["slow.0", "slow.1"]
    assert text.rollout.run == (await client.status()).run
    with pytest.raises(ServiceCallError, match="has 0 segments"):
        await client.tokens("slow.0")
    engine.latency_s = 0
    await client.cancel(["slow.0", "slow.1"])
    assert (await client.text("slow.0")).rollout.state in (
        RolloutState.CANCELLED,
        RolloutState.DONE,
    )


async def test_a_service_that_does_not_answer_costs_the_text_of_its_rollouts_alone(
    services: list[local.LocalProcess], client: AsyncRolloutClient, tmp_path: Path
) -> None:
    groups = [scored(f"g{i}", 1, 1, sleep=1000) for i in range(2)]
    await client.submit(groups)
    await until_both_run(services)
    for service in services:
        service.kill()
    asked = await asyncio.gather(
        *(client.text(one) for one in ids_of(groups)), return_exceptions=True
    )
    for answer in asked:
        if isinstance(answer, ServiceCallError):
            assert "did not send its text" in answer.error.message
        else:  # it has left the service that was lost
            assert not isinstance(answer, BaseException)
            assert answer.turns == []
    assert len((await client.rollouts(RolloutQuery())).rollouts) == 4
    await client.cancel(ids_of(groups))


async def test_events_of_all_services_are_told(
    services: list[local.LocalProcess], client: AsyncRolloutClient
) -> None:
    groups = [scored(f"g{i}", 1, 0) for i in range(4)]
    ended: set[object] = set()

    async def listen() -> None:
        async for event in client.events():
            if event.event == "hello":
                await client.submit(groups)
            if event.data.get("state") == "done":
                ended.add(event.data["rollout_id"])
            if len(ended) == 8:
                return

    await asyncio.wait_for(listen(), WAIT_S)
    assert ended == set(ids_of(groups))
