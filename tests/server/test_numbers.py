"""Numbers that no score should be, and results that cannot be read: each costs one group."""

import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from prorl_service.agents import base
from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.sampling import sampler
from prorl_service.sampling.filter import GroupState, Scores, outcome
from prorl_service.schemas import Blame, RolloutState
from prorl_service.schemas.sampling import DrawSpec, DrawState, Filter, SamplerSpec
from prorl_service.testing import StubEngine
from tests.server.application import Settings, serving, until
from tests.server.draws import INFORMATIVE, drawn, scored_settings
from tests.server.scored_agent import scored

HUGE = 1.7e308


@pytest.fixture
def settings(engine: StubEngine) -> Settings:
    return scored_settings(engine)


@pytest.fixture
def kept(settings: Settings, tmp_path: Path) -> Settings:
    return replace(settings, journal=tmp_path / "journal.sqlite", resume=True)


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [one for one in caplog.records if one.exc_info]
    assert not [one for one in caplog.records if one.levelno > logging.ERROR]


async def is_healthy(url: str) -> bool:
    async with httpx.AsyncClient(base_url=url) as http:
        answers = [await http.get(one) for one in ("/health", "/v1/groups", "/v1/training")]
    return {one.status_code for one in answers} == {200}


async def test_a_reward_beyond_all_sense_fails_its_rollout_with_one_line(
    client: AsyncRolloutClient,
) -> None:
    await client.submit([scored("g", HUGE)])
    (one,) = await client.wait(["g.0"], 10)
    assert one.state is RolloutState.FAILED
    assert one.error is not None
    assert one.error.blame is Blame.EVALUATOR
    assert "from -1000000 to 1000000, not 1.7e+308" in one.error.message


async def old_results(kept: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a service without the rule write the rewards of a sampler's candidate."""
    with monkeypatch.context() as patch:
        patch.setattr(base, "is_score", lambda _: True)
        async with serving(kept) as url, AsyncRolloutClient(url) as client:
            await client.create_sampler("s", SamplerSpec(groups_at_once=1))
            await client.open_draw("s", "d", DrawSpec(target=1))
            group = scored("bad", HUGE, HUGE, -HUGE, 1.2e308)
            await client.add_candidates("s", [group])
            await client.submit([scored("plain", HUGE, HUGE)])
            await client.wait(["plain.0", "plain.1"], 10)
            await until(lambda: client.sampler("s"), lambda sampler: sampler.failed == 1)


async def test_a_journal_that_holds_such_rewards_is_resumed(
    kept: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await old_results(kept, monkeypatch)
    async with serving(kept) as url, AsyncRolloutClient(url) as client:
        assert await is_healthy(url)
        await client.add_candidates("s", [scored("good", *INFORMATIVE)])
        draw = await drawn(client)
        assert [one.candidate for one in draw.groups] == ["good"]
        assert [(one.candidate, one.reason) for one in draw.dropped] == [("bad", "failed")]
        assert draw.dropped[0].error is not None
        assert "beyond 1000000" in draw.dropped[0].error.message
        assert [one.reward for one in await client.wait(["plain.0"], 10)] == [HUGE]
        assert await is_healthy(url)


async def test_a_verdict_that_raises_fails_its_candidate_and_nothing_else(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verdict(scores: Scores, n: int, wanted: Filter) -> GroupState:
        if 0.25 in scores.known():
            raise OverflowError("intermediate overflow")
        return outcome(scores, n, wanted)

    monkeypatch.setattr(sampler, "outcome", verdict)
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.create_sampler("s", SamplerSpec())
        groups = [scored("bad", 0.25, 1), scored("good", 0, 1)]
        await client.add_candidates("s", groups, is_last=True)
        await client.open_draw("s", "d", DrawSpec(target=2))
        draw = await drawn(client)
        assert (draw.state, [one.candidate for one in draw.groups]) == (
            DrawState.EXHAUSTED,
            ["good"],
        )
        assert draw.dropped[0].error is not None
        assert "intermediate overflow" in draw.dropped[0].error.message
        assert await is_healthy(url)


async def test_a_filter_of_a_metric_that_no_rollout_has_ends_the_first_draw_with_the_names(
    url: str, client: AsyncRolloutClient
) -> None:
    spec = SamplerSpec(filter=Filter(metric="corect"), groups_at_once=1)
    await client.create_sampler("s", spec)
    await client.add_candidates("s", [scored(f"g{i}", *INFORMATIVE) for i in range(4)])
    line = r"its components are none; the filter wants 'corect'"
    await client.open_draw("s", "d", DrawSpec(target=2))
    with pytest.raises(ServiceCallError, match=line):
        await drawn(client)
    with pytest.raises(ServiceCallError, match=line):
        await client.sampler("s")
    assert (await client.status()).rollouts.get(RolloutState.DONE, 0) <= 4


def scribble(path: Path, chance: random.Random) -> None:
    """Overwrites some of the pages that hold results."""
    content = bytearray(path.read_bytes())
    pages = [i for i in range(0, len(content), 4096) if content[i : i + 4096].count(b"prompt_ids")]
    for start in chance.sample(pages, max(1, len(pages) // 4)):
        content[start : start + 4096] = chance.randbytes(4096)
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(3))
async def test_results_on_damaged_pages_fail_alone(kept: Settings, seed: int) -> None:
    groups = [scored(f"g{i}", *INFORMATIVE) for i in range(10)]
    ids = [one for group in groups for one in group.rollout_ids()]
    async with serving(kept) as url, AsyncRolloutClient(url) as client:
        await client.submit(groups)
        before = {one.rollout_id: one for one in await client.wait(ids, 30)}
    assert kept.journal is not None
    scribble(kept.journal, random.Random(seed))
    async with serving(kept) as url, AsyncRolloutClient(url) as client:
        found = await client.wait(ids, 30)
        lost = [one for one in found if one.error is not None]
        assert lost
        assert {one.error.kind for one in lost if one.error} == {"ResultLost"}
        assert all(before[one.rollout_id] == one for one in found if one.error is None)
        assert await is_healthy(url)
        await client.acknowledge([one.group_id for one in groups])
