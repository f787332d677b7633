"""Several services behind one address: they share the work, and may die, drain and come back."""

import asyncio
import signal
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import AsyncRolloutClient, RolloutClient
from prorl_service.client.sampling import SamplerClient
from prorl_service.schemas import NOT_SAMPLED, BackendState, Group, Rollout, RolloutState
from prorl_service.schemas.sampling import Draw, DrawSpec, DrawState, SamplerSpec
from prorl_service.testing import StubEngine, safetensors
from tests.front.conftest import service
from tests.rollouts.journals import rollout_states
from tests.server.application import Settings, serving, until
from tests.server.scored_agent import scored

pytestmark = pytest.mark.processes

WAIT_S = 120


def ids_of(groups: Sequence[Group]) -> list[str]:
    return [one for group in groups for one in group.rollout_ids()]


async def at(running: local.LocalProcess) -> Counter[RolloutState]:
    """Counts a service's rollouts by state."""
    async with AsyncRolloutClient(running.url) as client:
        return Counter((await client.status()).rollouts)


async def at_all(services: Sequence[local.LocalProcess]) -> list[Counter[RolloutState]]:
    return [await at(one) for one in services]


async def until_both_run(services: Sequence[local.LocalProcess]) -> None:
    await until(
        lambda: at_all(services), lambda found: all(one[RolloutState.RUNNING] for one in found)
    )


async def until_empty(*services: local.LocalProcess) -> None:
    await until(lambda: at_all(services), lambda found: not any(one.total() for one in found))


async def until_running(services: Sequence[local.LocalProcess], count: int) -> None:
    await until(
        lambda: at_all(services),
        lambda found: sum(one[RolloutState.RUNNING] for one in found) == count,
    )


def ends(settings: Settings) -> Counter[tuple[str, str | None]]:
    """Counts the ends of rollouts in the front's journal."""
    assert settings.journal is not None
    return Counter(rollout_states(settings.journal))


def assert_done(rollouts: Sequence[Rollout], groups: Sequence[Group]) -> None:
    assert [one.rollout_id for one in rollouts] == ids_of(groups)
    for rollout in rollouts:
        assert rollout.state is RolloutState.DONE, rollout.error
        assert rollout.reward == rollout.index % 2
        assert rollout.trajectory is not None
        assert rollout.trajectory.segments[0].response_ids[:2] == [5, 6]


async def test_services_share_the_work_and_are_left_empty(
    services: list[local.LocalProcess], client: AsyncRolloutClient
) -> None:
    groups = [scored(f"g{i}", 0, 1, 0, 1, sleep=0.2) for i in range(8)]
    await client.submit(groups)
    await until_both_run(services)
    assert_done(await client.wait(ids_of(groups), WAIT_S), groups)
    await until_empty(*services)
    assert (await client.status()).rollouts == {RolloutState.DONE: 32}


async def test_a_draining_service_ends_its_running_rollouts_and_gets_no_more(
    services: list[local.LocalProcess], client: AsyncRolloutClient, tmp_path: Path
) -> None:
    groups = [scored(f"g{i}", 0, 1, sleep=1) for i in range(4)]
    await client.submit(groups)
    await until_both_run(services)
    services[0].process.send_signal(signal.SIGTERM)
    more = [scored(f"more{i}", 0, 1) for i in range(4)]
    await client.submit(more)
    await asyncio.to_thread(services[0].process.wait, WAIT_S)
    assert not (tmp_path / "services" / "a.json").exists()
    ended = await client.wait(ids_of([*groups, *more]), WAIT_S)
    assert_done(ended, [*groups, *more])
    assert [one.attempt for one in ended].count(1) >= 10


async def test_a_draw_completes_even_if_a_service_dies(
    services: list[local.LocalProcess], settings: Settings
) -> None:
    kinds = ((1, 1), (0, 1), (0, 0), (0, 1))
    candidates = (scored(f"c{i}", *kinds[i % 4], sleep=0.5, task_id=f"t{i}") for i in count())

    def train(url: str) -> list[tuple[Draw, list[list[Rollout]]]]:
        with (
            RolloutClient(url) as client,
            SamplerClient(client, "s", SamplerSpec(), candidates) as sampler,
        ):
            return [sampler.draw(f"d{step}", DrawSpec(target=4)) for step in range(3)]

    async with serving(settings) as url:
        training = asyncio.create_task(asyncio.to_thread(train, url))
        await until_running(services[1:], 2)  # which is all that it can
        services[1].kill()
        draws = await training
    assert [draw.state for draw, _ in draws] == [DrawState.COMPLETE] * 3
    names = [group.candidate for draw, _ in draws for group in draw.groups]
    assert len(set(names)) == len(names) == 12
    for _, groups in draws:
        assert [[one.reward for one in group] for group in groups] == [[0, 1]] * 4


async def test_cancelled_rollouts_end_at_their_service_too(
    services: list[local.LocalProcess], client: AsyncRolloutClient
) -> None:
    groups = [scored(f"slow{i}", 0, 1, 0, sleep=1000) for i in range(4)]
    await client.submit(groups)
    await until_both_run(services)
    ended = await client.cancel(ids_of(groups))
    assert {one.state for one in ended} == {RolloutState.CANCELLED}
    await until_empty(*services)


async def test_rollouts_cancelled_on_a_lost_service_end(
    services: list[local.LocalProcess], client: AsyncRolloutClient
) -> None:
    groups = [scored(f"slow{i}", 0, 1, sleep=1000) for i in range(2)]
    await client.submit(groups)
    await until_both_run(services)
    for one in services:
        one.kill()
    ended = await client.cancel(ids_of(groups))
    assert {one.state for one in ended} == {RolloutState.CANCELLED}


async def test_rollouts_that_a_service_drops_by_itself_start_from_scratch(
    services: list[local.LocalProcess], client: AsyncRolloutClient
) -> None:
    group = scored("g", 0, 1, sleep=1)
    await client.submit([group])
    await until_running(services, 2)
    for one in services:
        async with AsyncRolloutClient(one.url) as other:
            if (await at(one)).total():
                await other.cancel(group.rollout_ids())
                break
    ended = await client.wait(group.rollout_ids(), WAIT_S)
    assert_done(ended, [group])
    assert {one.attempt for one in ended} == {2}


async def test_a_service_that_returns_elsewhere_continues_from_its_journal(
    settings: Settings, tmp_path: Path
) -> None:
    group = scored("g", 0, 1, sleep=2)
    journal = ("--journal", str(tmp_path / "a.sqlite"), "--resume")
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        with service("a", tmp_path, *journal) as running:
            await client.submit([group])
            await until_running([running], 2)
            running.kill()
        with service("a", tmp_path, *journal):
            ended = await client.wait(group.rollout_ids(), WAIT_S)
    assert_done(ended, [group])


async def test_the_front_alone_gives_engines_their_weights(
    services: list[local.LocalProcess], engine: StubEngine, client: AsyncRolloutClient
) -> None:
    for version in (3, 4):
        assert (
            await client.stream_weights([safetensors(b"weights")], after=version - 1)
        ).version == version
        groups = [scored(f"v{version}-{i}", 0, 1) for i in range(4)]
        await client.submit(groups)
        assert await versions_of(client, groups) == {version}
    engine.status = 503
    await until(client.backends, lambda found: found[0].state is BackendState.DOWN)
    groups = [scored(f"later-{i}", 0, 1) for i in range(4)]
    await client.submit(groups)
    engine.restart()  # it lost its weights, and gets no calls until the front has pushed them
    engine.status = 200
    assert await versions_of(client, groups) == {4}
    assert (engine.version, engine.weights) == (4, b"weights")


async def versions_of(client: AsyncRolloutClient, groups: Sequence[Group]) -> set[int]:
    ended = await client.wait(ids_of(groups), WAIT_S)
    assert_done(ended, groups)
    sampled = [one.trajectory.segments[0].policy_versions for one in ended if one.trajectory]
    return {version for versions in sampled for version in versions} - {NOT_SAMPLED}


async def test_a_group_that_no_service_takes_fails_with_the_reason(
    settings: Settings, tmp_path: Path
) -> None:
    with local.service([], log=tmp_path / "other.log") as other:
        (tmp_path / "services").mkdir()
        (tmp_path / "services" / "other.json").write_text(f'{{"url": "{other.url}"}}')
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            await client.submit([scored("g", 0, 1)])
            ended = await client.wait(["g.0", "g.1"], WAIT_S)
    for rollout in ended:
        assert rollout.error is not None
        assert "no agent 'scored'" in rollout.error.message


async def test_the_front_refuses_a_group_of_an_unknown_agent(client: AsyncRolloutClient) -> None:
    group = scored("g", 0, 1)
    group.task.agent = "stranger"
    with pytest.raises(Exception, match="no agent 'stranger'"):
        await client.submit([group])
