"""Samplers of trainers that die and start again, or go back to a checkpoint."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from prorl_service.client import AsyncRolloutClient, RolloutClient, ServiceCallError
from prorl_service.client.sampling import SamplerClient, StepDraws
from prorl_service.sampling.candidates import Candidate
from prorl_service.sampling.sampler import Sampler as Core
from prorl_service.schemas import Group, Rollout, RolloutState
from prorl_service.schemas.sampling import MAX_CANDIDATE_ID, DrawnGroup, DrawSpec, SamplerSpec
from prorl_service.testing import StubEngine, safetensors
from tests.server.application import Settings, finished, serving
from tests.server.draws import INFORMATIVE, drawn, scored_settings
from tests.server.scored_agent import scored
from tests.trainers import async_trainer
from tests.waits import condition


@pytest.fixture
def settings(engine: StubEngine) -> Settings:
    return scored_settings(engine)


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncRolloutClient]:
    async with async_trainer(url) as connected:
        yield connected


def data() -> Iterator[Group]:
    """Returns the data set that each start of a script makes."""
    return (scored(f"epoch0-{number}", *INFORMATIVE, task_id=f"t{number}") for number in count())


def versions(rollouts: list[list[Rollout]]) -> set[int | None]:
    return {one.newest_policy_version for group in rollouts for one in group}


async def die_between_draw_and_acknowledgement(client: AsyncRolloutClient, run: str | None) -> None:
    """Draws with weights of version 57, and acknowledges nothing."""
    await client.stream_weights([safetensors(b"late")], after=56)
    await client.create_sampler("my-run", SamplerSpec(run=run))
    groups = data()
    await client.add_candidates("my-run", [next(groups) for _ in range(8)])
    await client.open_draw("my-run", "step-0", DrawSpec(target=2))
    assert len((await drawn(client, "my-run")).groups) == 2


async def test_a_restarted_script_is_not_given_the_groups_of_its_previous_start(
    url: str, client: AsyncRolloutClient, engine: StubEngine
) -> None:
    await die_between_draw_and_acknowledgement(client, run="start-1")
    await client.stream_weights([safetensors(b"early")])
    calls = engine.calls

    def start_again() -> list[list[Rollout]]:
        with RolloutClient(url) as blocking:
            sampler = SamplerClient(blocking, "my-run", SamplerSpec(), data())
            with pytest.raises(ServiceCallError, match="belongs to run 'start-1'") as refusal:
                sampler.draw("step-0", DrawSpec(target=2))
            assert refusal.value.http_status == 409
            assert "delete" in refusal.value.error.hint
            blocking.delete_sampler("my-run")
            with sampler:
                return sampler.draw("step-0", DrawSpec(target=2))[1]

    rollouts = await asyncio.to_thread(start_again)
    assert versions(rollouts) == {58}
    assert engine.calls >= calls + 8


async def test_deleting_a_sampler_deletes_the_groups_it_gave(
    client: AsyncRolloutClient,
) -> None:
    await die_between_draw_and_acknowledgement(client, run=None)
    await client.delete_sampler("my-run")
    assert (await client.status()).rollouts == {}


async def test_the_draws_of_one_start_belong_to_one_run(url: str) -> None:
    def train() -> str:
        with RolloutClient(url) as blocking:
            first, second = (
                StepDraws("my-run", SamplerSpec(), data(), deadline_s=60) for _ in range(2)
            )
            for step in range(2):
                first.draw(blocking, f"step-{step}", DrawSpec(target=1))
            with pytest.raises(ServiceCallError) as refused:
                second.draw(blocking, "step-0", DrawSpec(target=1))
        return str(refused.value)

    assert "belongs to run" in await asyncio.to_thread(train)


async def test_a_named_run_is_continued(url: str, client: AsyncRolloutClient) -> None:
    await die_between_draw_and_acknowledgement(client, run="mine")

    def start_again() -> list[list[Rollout]]:
        with RolloutClient(url) as blocking:
            sampler = SamplerClient(blocking, "my-run", SamplerSpec(run="mine"), data())
            return sampler.draw("step-0", DrawSpec(target=2))[1]

    assert versions(await asyncio.to_thread(start_again)) == {57}


@pytest.mark.slow
async def test_a_users_group_is_never_taken_for_one_of_a_sampler(
    settings: Settings, tmp_path: Path
) -> None:
    settings = replace(settings, journal=tmp_path / "journal.sqlite", resume=True)
    mine = scored("s:epoch0-0:1", *INFORMATIVE, sleep=1)
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.create_sampler("s", SamplerSpec())
        await client.submit([mine])
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        ended = await finished(client, mine)
        assert {one.state for one in ended} == {RolloutState.DONE}


def test_ids_of_the_longest_names_have_room() -> None:
    core = Core("s" * 60, SamplerSpec(), slots=1, incarnation="a" * 8)
    candidate = Candidate(scored("c" * MAX_CANDIDATE_ID, *INFORMATIVE), attempt=99_999_999)
    group = core.group_of(candidate)
    DrawnGroup(group_id=group.group_id, candidate=candidate.name, n=4)


async def test_candidates_that_waited_in_a_sampler_are_given_again_after_its_lease(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    groups = [scored(f"g{i}", *INFORMATIVE, task_id=f"t{i}") for i in range(4)]
    spec = SamplerSpec(groups_at_once=1, lease_s=0.2)
    draws = StepDraws("s", spec, iter(groups), deadline_s=60)

    def drawn_names(step: int, target: int) -> list[str]:
        with RolloutClient(url) as blocking:
            draw, _ = draws.draw(blocking, f"step-{step}", DrawSpec(target=target))
        return [one.candidate for one in draw.groups]

    first = await asyncio.to_thread(drawn_names, 0, 1)
    await condition(lambda: "its lease expired" in caplog.text)
    second = await asyncio.to_thread(drawn_names, 1, 3)
    assert sorted(first + second) == ["g0", "g1", "g2", "g3"]
    assert "candidates are given again" in caplog.text
