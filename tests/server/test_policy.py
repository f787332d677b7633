"""One training at a time over HTTP: what a service refuses, and what it ends, when another training
comes, with any client."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.schemas import PolicyClaim, Rollout, RolloutState
from prorl_service.schemas.sampling import DrawSpec, SamplerSpec
from prorl_service.testing import StubEngine, safetensors
from tests.server.application import Settings, serving, until
from tests.server.draws import INFORMATIVE, drawn, scored_settings
from tests.server.scored_agent import scored
from tests.trainers import async_trainer, training

WAIT_S = 60
FIRST, SECOND = training("first"), training("second")


@pytest.fixture
def settings(engine: StubEngine) -> Settings:
    return scored_settings(engine)


@pytest.fixture
async def first(url: str) -> AsyncIterator[AsyncRolloutClient]:
    async with async_trainer(url, FIRST) as client:
        yield client


async def refused(call: Any, kind: str = "PolicyTaken") -> ServiceCallError:
    with pytest.raises(ServiceCallError, match=kind) as refusal:
        await call
    assert refusal.value.http_status == 409
    return refusal.value


def as_second(url: str) -> AsyncRolloutClient:
    return AsyncRolloutClient(url, training=SECOND.key)


async def take_over(client: AsyncRolloutClient) -> None:
    await client.claim_policy(PolicyClaim(training=SECOND, take_over=True))


async def test_another_training_may_do_nothing_that_touches_the_policy(
    url: str, engine: StubEngine, first: AsyncRolloutClient
) -> None:
    await first.stream_weights([safetensors(b"first")])
    async with as_second(url) as second:
        error = await refused(second.claim_policy(PolicyClaim(training=SECOND)))
        assert "user ada" in error.error.message
        await refused(second.stream_weights([safetensors(b"second")]))
        await refused(second.load_weights("/shared/second"))
        await refused(second.submit([scored("g", 1)]))
        await refused(second.submit([scored("g", 1)], invalid="fail"))
        await refused(second.add_backend("http://127.0.0.1:1"))
    assert (engine.weights, engine.calls) == (b"first", 0)
    status = await first.status()
    assert status.training is not None
    assert (status.training.training, status.training.is_live) == (FIRST, True)


async def test_weights_without_a_training_are_refused(
    http: httpx.AsyncClient, tmp_path: Path
) -> None:
    for send in (
        http.put("/v1/weights", content=b"x"),
        http.post("/v1/weights", json={"path": str(tmp_path)}),
        http.post("/v1/weights/group", json={"init_info": {}}),
        http.post("/v1/weights/broadcast", json={"group": "g", "update_info": {}}),
    ):
        answer = await send
        assert answer.status_code == 422
        assert "prorl-training" in answer.json()["error"]["message"]


@pytest.mark.parametrize("named", [True, False])
async def test_who_takes_over_ends_the_rollouts_of_the_other(
    url: str, engine: StubEngine, first: AsyncRolloutClient, named: bool
) -> None:
    """A group that names no training belongs to the one that holds the policy."""
    await first.stream_weights([safetensors(b"first")])
    running = scored("running", 0, 1, 0, 1, sleep=0.5)
    async with AsyncRolloutClient(url) as anonymous, as_second(url) as second:
        await (first if named else anonymous).submit([running])
        await take_over(second)
        ended = await anonymous.wait(running.rollout_ids(), WAIT_S)
        assert {one.state for one in ended} == {RolloutState.CANCELLED}
        assert {one.error and one.error.kind for one in ended} == {"PolicyTaken"}
        await refused(first.submit([scored("more", 1)]))
        await refused(first.stream_weights([safetensors(b"again")]))
        await refused(second.submit([scored("early", 1)]))
        await second.stream_weights([safetensors(b"second")])
        await second.submit([scored("own", 0, 1)])
        ended = await second.wait(["own.0", "own.1"], WAIT_S)
    assert {one.state for one in ended} == {RolloutState.DONE}
    assert {one.newest_policy_version for one in ended} == {2}


async def test_a_push_that_began_before_the_policy_changed_hands_is_refused(
    url: str, engine: StubEngine, first: AsyncRolloutClient
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        file = safetensors(b"first")
        yield file[:70]
        began.set()
        await may_end.wait()
        yield file[70:]

    headers = {"Prorl-Training": FIRST.key}
    async with httpx.AsyncClient(base_url=url, headers=headers) as http, as_second(url) as second:
        push = asyncio.create_task(http.put("/v1/weights", content=pieces()))
        await began.wait()
        await take_over(second)
        await second.stream_weights([safetensors(b"second")])
        may_end.set()
        answer = await push
    assert answer.json()["error"]["kind"] == "PolicyTaken"
    assert engine.weights == b"second"


async def test_an_equal_group_of_another_training_is_another_group(
    url: str, first: AsyncRolloutClient
) -> None:
    await first.submit([scored("g", 1)])
    await first.wait(["g.0"], WAIT_S)
    await first.stream_weights([safetensors(b"first")])
    async with as_second(url) as second:
        await take_over(second)
        await second.stream_weights([safetensors(b"second")])
        await refused(second.submit([scored("g", 1)]), "Conflict")


async def test_a_sampler_ends_with_the_training_that_drew_from_it(
    url: str, first: AsyncRolloutClient
) -> None:
    """Another training with a sampler of the same name gets none of its groups."""
    spec = SamplerSpec(groups_at_once=2, groups_ahead=4)
    candidates = [scored(f"c{number}", *INFORMATIVE) for number in range(8)]
    await first.stream_weights([safetensors(b"first")])
    await first.create_sampler("s", spec)
    await first.add_candidates("s", candidates)
    await first.open_draw("s", "draw-0", DrawSpec(target=1))
    await until(lambda: first.sampler("s"), lambda sampler: sampler.informative >= 1)
    async with as_second(url) as second:
        await take_over(second)
        with pytest.raises(ServiceCallError, match="404"):
            await first.sampler("s")
        await second.stream_weights([safetensors(b"second")])
        status = await second.create_sampler("s", spec)
        assert (status.informative, status.waiting, status.draw) == (0, 0, None)
        await second.add_candidates("s", candidates)
        await second.open_draw("s", "draw-0", DrawSpec(target=2))

        draw = await drawn(second)
    assert {one.newest_policy_version for one in draw.groups} == {2}


async def test_engines_of_a_training_are_alone_and_leave_with_it(
    settings: Settings, engine: StubEngine, tiny_model: Path
) -> None:
    async with (
        StubEngine(tiny_model, lambda _: [1]) as other,
        serving(replace(settings, backends=())) as url,
        async_trainer(url, FIRST) as first,
        as_second(url) as second,
        AsyncRolloutClient(url) as anyone,
    ):
        await first.add_backend(engine.url)
        with pytest.raises(ServiceCallError, match="it has other engines already"):
            await anyone.add_backend(other.url)
        await take_over(second)
        assert await anyone.backends() == []
        await refused(first.add_backend(engine.url))
        await anyone.add_backend(other.url)


async def test_the_policy_is_still_held_after_a_restart(
    settings: Settings, engine: StubEngine, tmp_path: Path
) -> None:
    settings = replace(settings, journal=tmp_path / "journal.sqlite", resume=True)
    async with serving(settings) as url, async_trainer(url, FIRST) as first:
        await first.stream_weights([safetensors(b"first")])
    async with serving(settings) as url, as_second(url) as second:
        await refused(second.claim_policy(PolicyClaim(training=SECOND)))
        async with AsyncRolloutClient(url, training=FIRST.key) as first:
            await first.submit([scored("g", 1)])
            ended: list[Rollout] = await first.wait(["g.0"], WAIT_S)
            await first.release_policy()
        await second.claim_policy(PolicyClaim(training=SECOND))
    assert ended[0].newest_policy_version == 1


async def test_a_service_that_has_forgotten_a_training_says_so(
    url: str, engine: StubEngine
) -> None:
    async with AsyncRolloutClient(url, training=FIRST.key) as first:
        error = await refused(first.submit([scored("g", 1)]), "PolicyUnclaimed")
        assert error.is_forgotten
        await first.claim_policy(PolicyClaim(training=FIRST, is_renewal=True))
        await first.submit([scored("g", 1)])
