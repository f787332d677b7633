"""A front with `--durability node`: results stay at the services that made them."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import httpx
import pytest

from prorl_service import local
from prorl_service.client import AsyncRolloutClient
from prorl_service.net.credentials import authorization
from prorl_service.rollouts.journal.seals import opened
from prorl_service.rollouts.references import MAX_BYTES, holder
from prorl_service.schemas import Rollout, RolloutState
from prorl_service.schemas.arrays import PACKED_MEDIA_TYPE
from tests.front.test_front import assert_done, at, ids_of, until_both_run
from tests.server.application import Settings, serving, until
from tests.server.scored_agent import scored

pytestmark = pytest.mark.processes

WAIT_S = 120


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return replace(settings, durability="node")


def answers(settings: Settings) -> list[bytes]:
    """Returns what the front's journal has of ended rollouts."""
    assert settings.journal is not None
    with closing(sqlite3.connect(settings.journal)) as db:
        stored = db.execute("SELECT answer, id FROM rollouts")
        return [opened(answer, row_id) for answer, row_id in stored]


async def until_ended(client: AsyncRolloutClient, count: int) -> None:
    """Waits for the ends of rollouts without reading their results."""

    async def have_ended() -> bool:
        return (await client.status()).rollouts.get(RolloutState.DONE, 0) == count

    await until(have_ended)


async def are_empty(services: list[local.LocalProcess]) -> bool:
    return not any([(await at(one)).total() for one in services])


async def test_results_stay_at_their_services_until_they_are_acknowledged(
    services: list[local.LocalProcess], settings: Settings
) -> None:
    groups = [scored(f"g{i}", 0, 1, sleep=0.5) for i in range(6)]
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.submit(groups)
        await until_both_run(services)
        assert_done(await client.wait(ids_of(groups), WAIT_S), groups)
        assert {holder(one) for one in answers(settings)} == {"a", "b"}
        assert max(map(len, answers(settings))) < MAX_BYTES
        assert sum([(await at(one))[RolloutState.DONE] for one in services]) == 12
        assert (await client.text("g0.0")).rollout.state is RolloutState.DONE
    async with serving(settings) as url, AsyncRolloutClient(url) as client:  # another front
        assert_done([await client.get(one) for one in ids_of(groups)], groups)
        await client.acknowledge([one.group_id for one in groups])
        await until(lambda: are_empty(services))
        assert not (await client.status()).rollouts


async def test_callers_that_follow_no_location_read_through_the_front(
    services: list[local.LocalProcess], settings: Settings
) -> None:
    group = scored("g", 0, 1)
    headers = {"Accept": PACKED_MEDIA_TYPE, **authorization(services[0].url)}
    async with (
        serving(settings) as url,
        AsyncRolloutClient(url) as client,
        httpx.AsyncClient(base_url=url, headers=headers) as caller,
    ):
        await client.submit([group])
        followed = await client.wait(group.rollout_ids(), WAIT_S)
        body = {"rollout_ids": group.rollout_ids()}
        streamed = (await caller.post("/v1/rollouts/stream", json=body)).text
        located = (await caller.post("/v1/rollouts/stream", json={**body, "form": "located"})).text
        asked = (await caller.get("/v1/rollouts/g.1")).text
    by_id = {one.rollout_id: one for one in followed}
    for line in streamed.splitlines():
        whole = Rollout.model_validate_json(line)
        assert whole == by_id[whole.rollout_id]
    assert Rollout.model_validate_json(asked) == by_id["g.1"]
    for line in located.splitlines():
        summary = Rollout.model_validate_json(line)
        assert summary.location in {one.url for one in services}
        assert (summary.trajectory, summary.report) == (None, None)
        assert summary.figures == by_id[summary.rollout_id].figures


async def test_unread_results_of_a_lost_service_are_made_again(
    services: list[local.LocalProcess], settings: Settings
) -> None:
    groups = [scored(f"g{i}", 0, 1, sleep=0.5) for i in range(6)]
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.submit(groups)
        await until_both_run(services)
        await until_ended(client, 12)
        services[0].kill()
        ended = await client.wait(ids_of(groups), WAIT_S)
        assert_done(ended, groups)
        assert {one.attempt for one in ended} == {1, 2}
        assert (await client.status()).rollouts == {RolloutState.DONE: 12}
        await client.acknowledge([one.group_id for one in groups])
        assert not (await client.status()).rollouts
        await until(lambda: are_empty(services[1:]))


async def test_a_service_that_lost_its_results_makes_them_again(
    services: list[local.LocalProcess], settings: Settings
) -> None:
    group = scored("g", 0, 1)
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.submit([group])
        await until_ended(client, 2)
        for one in services:  # as if it had evicted them
            async with AsyncRolloutClient(one.url) as direct:
                await direct.acknowledge(["g"])
        ended = await client.wait(group.rollout_ids(), WAIT_S)
    assert_done(ended, [group])
    assert all(one.attempt >= 2 for one in ended)
