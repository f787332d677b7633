"""Dynamic sampling over HTTP, across restarts and failures."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from prorl_service.client import AsyncRolloutClient, RolloutClient, ServiceCallError
from prorl_service.client.sampling import SamplerClient, StepDraws
from prorl_service.errors import JournalError
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.sampling.runner import SamplerRunner
from prorl_service.schemas import Group, RolloutState
from prorl_service.schemas.sampling import (
    Draw,
    DrawSpec,
    DrawState,
    DroppedGroup,
    SamplerSpec,
    SamplerStatus,
)
from prorl_service.testing import StubEngine
from tests.server.application import Settings, serving, until
from tests.server.draws import INFORMATIVE, drawn, scored_settings
from tests.server.scored_agent import scored
from tests.waits import condition

EASY, HARD = (1, 1, 1, 1), (0, 0, 0, 0)
FAILING = (None, None, None, None)


@pytest.fixture
def settings(engine: StubEngine) -> Settings:
    return scored_settings(engine)


async def test_groups_that_teach_nothing_are_left_out_and_forgotten(
    client: AsyncRolloutClient,
) -> None:
    await client.create_sampler("s", SamplerSpec())
    groups = [scored("easy", *EASY), scored("a", *INFORMATIVE), scored("hard", *HARD)]
    await client.add_candidates("s", [*groups, scored("b", *INFORMATIVE)])
    await client.open_draw("s", "d", DrawSpec(target=2))
    draw = await drawn(client)
    assert draw.state is DrawState.COMPLETE
    assert {group.candidate for group in draw.groups} == {"a", "b"}
    for group in draw.groups:
        rollouts = await client.wait(group.rollout_ids(), 10)
        assert [one.reward for one in rollouts] == [0, 1, 0, 1]
        assert all(one.trajectory for one in rollouts)
        assert all(one.oldest_policy_version == 0 for one in rollouts)
    await until(client.status, lambda status: status.rollouts == {RolloutState.DONE: 8})


async def test_dropped_groups_are_reported_with_their_reason(client: AsyncRolloutClient) -> None:
    await client.create_sampler("s", SamplerSpec(groups_at_once=1))
    groups = [scored("easy", *EASY), scored("broken", *FAILING), scored("a", *INFORMATIVE)]
    await client.add_candidates("s", groups)
    await client.open_draw("s", "d", DrawSpec(target=1))
    easy, broken = (await drawn(client)).dropped
    assert easy == DroppedGroup(candidate="easy", reason="uninformative", score_mean=1)
    assert (broken.candidate, broken.reason, broken.score_mean) == ("broken", "failed", None)
    assert broken.error is not None
    assert broken.error.message == "it fails, as it should"


@pytest.mark.slow
async def test_groups_dropped_between_draws_are_reported_after_a_restart(
    settings: Settings, tmp_path: Path
) -> None:
    settings = replace(settings, journal=tmp_path / "journal.sqlite", resume=True)
    groups = [scored("a", *INFORMATIVE), *(scored(f"g{i}", *HARD) for i in range(3))]
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.create_sampler("s", SamplerSpec(groups_at_once=1, groups_ahead=1))
        await client.add_candidates("s", groups, is_last=True)
        await client.open_draw("s", "d", DrawSpec(target=1))
        assert (await drawn(client)).dropped == []
        await until(lambda: client.sampler("s"), lambda sampler: sampler.uninformative == 3)
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.open_draw("s", "e", DrawSpec(target=1))
        draw = await drawn(client)
        assert draw.state is DrawState.EXHAUSTED
        assert {one.candidate for one in draw.dropped} == {"g0", "g1", "g2"}
        await client.open_draw("s", "f", DrawSpec(target=1))
        assert (await drawn(client)).dropped == []


@pytest.mark.slow
async def test_candidates_are_taken_from_an_iterator_as_they_are_needed(url: str) -> None:
    kinds = (EASY, HARD, INFORMATIVE, EASY)
    given: list[Group] = []
    news: list[SamplerStatus] = []

    def candidates() -> Iterator[Group]:
        for number in count():
            given.append(scored(f"g{number}", *kinds[number % 4], task_id=f"t{number}"))
            yield given[-1]

    def train() -> list[list[float | None]]:
        with (
            RolloutClient(url) as client,
            SamplerClient(client, "s", SamplerSpec(), candidates(), news.append) as sampler,
        ):
            draws = [sampler.draw(f"d{step}", DrawSpec(target=5)) for step in range(3)]
        assert all(draw.state is DrawState.COMPLETE for draw, _ in draws)
        names = [group.candidate for draw, _ in draws for group in draw.groups]
        assert len(set(names)) == 15
        return [[one.reward for one in group] for _, groups in draws for group in groups]

    assert await asyncio.to_thread(train) == [[0, 1, 0, 1]] * 15
    assert news[-1].given == 15
    assert news[-1].uninformative > 15
    assert len(given) < 15 * 4 + 200


async def test_the_end_of_the_data_ends_a_draw(url: str) -> None:
    data = [scored("easy", *EASY), scored("a", *INFORMATIVE)]

    def train() -> Draw:
        with (
            RolloutClient(url) as client,
            SamplerClient(client, "s", SamplerSpec(), iter(data)) as sampler,
        ):
            return sampler.draw("d", DrawSpec(target=2))[0]

    draw = await asyncio.to_thread(train)
    assert draw.state is DrawState.EXHAUSTED
    assert [group.candidate for group in draw.groups] == ["a"]


async def test_a_step_of_several_draws_is_counted_as_one(url: str) -> None:
    kinds = (EASY, INFORMATIVE, EASY, INFORMATIVE, EASY, EASY, EASY, INFORMATIVE)
    data = [scored(f"g{number}", *kind) for number, kind in enumerate(kinds)]

    def train() -> list[dict[str, float]]:
        spec = SamplerSpec(groups_at_once=1, defer_after=None)
        draws, metrics = StepDraws("s", spec, iter(data), deadline_s=60), []
        with RolloutClient(url) as client:
            for number, is_new_step in enumerate((True, False, True)):
                draws.draw(client, f"d{number}", DrawSpec(target=1), is_new_step=is_new_step)
                metrics.append(draws.metrics())
        return metrics

    metrics = await asyncio.to_thread(train)
    assert [one["prorl/sampling/uninformative"] for one in metrics] == [1, 2, 3]
    assert [one["prorl/sampling/informative_share"] for one in metrics] == [1 / 2, 1 / 2, 1 / 4]


@pytest.mark.slow
async def test_a_deadline_ends_a_draw_with_the_groups_so_far(client: AsyncRolloutClient) -> None:
    await client.create_sampler("s", SamplerSpec())
    await client.add_candidates(
        "s", [scored("a", *INFORMATIVE), scored("slow", *INFORMATIVE, sleep=60)]
    )
    await client.open_draw("s", "d", DrawSpec(target=2, deadline_s=1))
    draw = await drawn(client)
    assert draw.state is DrawState.OVERDUE
    assert [group.candidate for group in draw.groups] == ["a"]


@pytest.mark.slow
async def test_a_restart_loses_nothing_and_draws_nothing_twice(
    settings: Settings, tmp_path: Path
) -> None:
    settings = replace(settings, journal=tmp_path / "journal.sqlite", resume=True)
    kinds = (EASY, INFORMATIVE)
    groups = [scored(f"g{i}", *kinds[i % 2], sleep=0.05, task_id=f"t{i}") for i in range(60)]
    names: list[str] = []
    dropped: list[str] = []
    for step in range(6):
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            await client.create_sampler("s", SamplerSpec(groups_at_once=4))
            await client.add_candidates("s", groups, is_last=True)
            await client.open_draw("s", f"d{step // 2}", DrawSpec(target=10))
            if step % 2:
                draw = await drawn(client)
                names += [group.candidate for group in draw.groups]
                dropped += [group.candidate for group in draw.dropped]
                for group in draw.groups:
                    rollouts = await client.wait(group.rollout_ids(), 10)
                    assert {one.state for one in rollouts} == {RolloutState.DONE}
            else:
                await client.sampler("s", (await client.sampler("s")).revision, 10)
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.open_draw("s", "last", DrawSpec(target=1))
        dropped += [group.candidate for group in (await drawn(client)).dropped]
    assert sorted(names) == sorted(f"g{i}" for i in range(1, 60, 2))
    assert sorted(dropped) == sorted(f"g{i}" for i in range(0, 60, 2))


async def test_a_deleted_sampler_leaves_no_work(client: AsyncRolloutClient) -> None:
    await client.create_sampler("s", SamplerSpec())
    await client.add_candidates("s", [scored(f"g{i}", *EASY, sleep=60) for i in range(30)])
    await client.open_draw("s", "d", DrawSpec(target=2))
    await until(client.status, lambda status: RolloutState.RUNNING in status.rollouts)
    revision = (await client.sampler("s")).revision
    news = asyncio.create_task(client.sampler("s", revision, 60))
    await client.delete_sampler("s")
    with pytest.raises(ServiceCallError, match="there is no sampler"):
        await news
    assert (await client.status()).rollouts == {}
    with pytest.raises(ServiceCallError, match="there is no sampler"):
        await client.sampler("s")


@pytest.mark.slow
async def test_groups_that_wait_for_room_are_submitted_later_or_never(settings: Settings) -> None:
    settings = replace(settings, max_unfinished=4)
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.create_sampler("s", SamplerSpec())
        await client.add_candidates("s", [scored(f"g{i}", *INFORMATIVE) for i in range(3)])
        await client.open_draw("s", "d", DrawSpec(target=3))
        assert (await drawn(client)).state is DrawState.COMPLETE
        await client.add_candidates("s", [scored(f"slow{i}", *EASY, sleep=60) for i in range(3)])
        await client.open_draw("s", "e", DrawSpec(target=3))
        assert (await client.sampler("s")).under_way == 3
        await client.delete_sampler("s")
        assert (await client.status()).rollouts == {}


@pytest.mark.parametrize("error", [KeyError("a bug"), JournalError("the disk is full")])
async def test_an_expired_sampler_that_cannot_be_deleted_is_noticed(
    client: AsyncRolloutClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    async def refuse(_: SamplerRunner) -> None:
        raise error

    loop_errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, one: loop_errors.append(one))
    monkeypatch.setattr(SamplerRunner, "release", refuse)
    await client.create_sampler("s", SamplerSpec(lease_s=0.2))
    await condition(lambda: "delete sampler s failed" in caplog.text)
    failure = (await client.status()).failure
    assert (failure is None) == isinstance(error, JournalError)
    assert loop_errors == []


async def test_a_group_that_cannot_be_submitted_fails_alone(
    client: AsyncRolloutClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = RolloutExecutor.watch

    async def refuse_one(self: RolloutExecutor, ids: Sequence[str], on_end: Any) -> None:
        if ":bad:" in ids[0]:
            raise KeyError("a bug")
        await watch(self, ids, on_end)

    monkeypatch.setattr(RolloutExecutor, "watch", refuse_one)
    await client.create_sampler("s", SamplerSpec())
    groups = [scored("bad", *INFORMATIVE), scored("good", *INFORMATIVE)]
    await client.add_candidates("s", groups)
    await client.open_draw("s", "d", DrawSpec(target=1))
    draw = await drawn(client)
    assert [one.candidate for one in draw.groups] == ["good"]
    (dropped,) = draw.dropped
    assert dropped.error is not None
    assert (dropped.candidate, dropped.error.message) == ("bad", "KeyError('a bug')")
    assert (await client.status()).failure is None


@pytest.mark.slow
async def test_samplers_that_expire_at_the_same_time_are_all_deleted(
    client: AsyncRolloutClient,
) -> None:
    names = ["s", "t", "u"]
    for name in names:
        await client.create_sampler(name, SamplerSpec(lease_s=0.3))
        await client.add_candidates(name, [scored(f"{name}-g", *EASY, sleep=60)])
        await client.open_draw(name, "d", DrawSpec(target=2))
    await until(client.status, lambda status: status.rollouts == {})
    for name in names:
        with pytest.raises(ServiceCallError, match="there is no sampler"):
            await client.delete_sampler(name)


@pytest.mark.slow
async def test_a_sampler_made_while_its_namesake_is_deleted_keeps_its_groups(
    client: AsyncRolloutClient,
) -> None:
    for attempt in range(10):
        await client.create_sampler("s", SamplerSpec())
        await client.add_candidates("s", [scored("g", *EASY, sleep=60)])
        await client.open_draw("s", "d", DrawSpec(target=1))
        spec = SamplerSpec(max_staleness=3)
        made = client.create_sampler("s", spec)  # refused if it comes before the deletion
        await asyncio.gather(client.delete_sampler("s"), made, return_exceptions=True)
        await client.create_sampler("s", spec)
        await client.add_candidates("s", [scored(f"a{attempt}", *INFORMATIVE)])
        await client.open_draw("s", "d", DrawSpec(target=1))
        assert [one.candidate for one in (await drawn(client)).groups] == [f"a{attempt}"]
        await client.delete_sampler("s")


async def test_wrong_requests_are_refused_before_any_work(client: AsyncRolloutClient) -> None:
    with pytest.raises(ServiceCallError, match="there is no sampler"):
        await client.add_candidates("s", [scored("g", 0, 1)])
    await client.create_sampler("s", SamplerSpec())
    with pytest.raises(ServiceCallError, match="another specification"):
        await client.create_sampler("s", SamplerSpec(max_staleness=7))
    await client.open_draw("s", "d", DrawSpec(target=2))
    await client.open_draw("s", "d", DrawSpec(target=2))
    with pytest.raises(ServiceCallError, match="is open"):
        await client.open_draw("s", "e", DrawSpec(target=2))
    with pytest.raises(ServiceCallError, match="other content"):
        await client.open_draw("s", "d", DrawSpec(target=3))
