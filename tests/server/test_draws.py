"""Draws as their client sees them: always the one requested, and whole however large."""

import asyncio
import itertools
import time
from collections.abc import Iterator

import pytest

from prorl_service.client import AsyncRolloutClient, RolloutClient, ServiceCallError, retries
from prorl_service.client.sampling import SamplerClient
from prorl_service.errors import Conflict
from prorl_service.schemas import Group
from prorl_service.schemas.sampling import DrawSpec, DrawState, SamplerSpec, SamplerStatus
from prorl_service.testing import StubEngine
from tests.server.application import Settings
from tests.server.draws import scored_settings
from tests.server.scored_agent import scored

INFORMATIVE = (0, 1)


@pytest.fixture
def settings(engine: StubEngine) -> Settings:
    return scored_settings(engine)


def candidates(n: int = 2) -> Iterator[Group]:
    return (scored(f"g{i}", *INFORMATIVE * (n // 2), task_id=f"t{i}") for i in itertools.count())


async def test_a_draw_requested_twice_concurrently_is_answered_as_itself(
    client: AsyncRolloutClient,
) -> None:
    await client.create_sampler("s", SamplerSpec())
    await client.add_candidates("s", list(itertools.islice(candidates(), 20)))
    for step in range(20):
        asked = (client.open_draw("s", f"d{step}", DrawSpec(target=1)) for _ in range(2))
        for status in await asyncio.gather(*asked):
            assert status.draw is not None
            assert status.draw.draw_id == f"d{step}"
        while status.draw is None or status.draw.state is DrawState.OPEN:
            status = await client.sampler("s", status.revision, 10)


@pytest.mark.slow
async def test_a_large_draw_is_fetched_for_as_long_as_rollouts_keep_coming(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock takes a second, so that the fetch takes hundreds."""
    seconds = itertools.count()

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return float(next(seconds))

        sleep = staticmethod(time.sleep)

    def draw() -> list[float | None]:
        with (
            RolloutClient(url) as client,
            SamplerClient(client, "s", SamplerSpec(), candidates(16)) as sampler,
        ):
            monkeypatch.setattr(retries, "time", Clock)
            _, groups = sampler.draw("d", DrawSpec(target=40))
        return [one.reward for group in groups for one in group]

    assert await asyncio.to_thread(draw) == [*INFORMATIVE] * 8 * 40
    assert next(seconds) > 300


class _Behind(RolloutClient):
    """A client that sees the previous draw, as may happen at a service that two trainers use."""

    def open_draw(self, sampler_id: str, draw_id: str, spec: DrawSpec) -> SamplerStatus:
        before = self.sampler(sampler_id)
        super().open_draw(sampler_id, draw_id, spec)
        return before if before.draw else super().open_draw(sampler_id, draw_id, spec)


async def test_another_draw_is_never_taken_for_the_requested_one(url: str) -> None:
    def train() -> None:
        with _Behind(url) as client:
            sampler = SamplerClient(client, "s", SamplerSpec(), candidates())
            sampler.draw("d0", DrawSpec(target=1))
            sampler.draw("d1", DrawSpec(target=1))

    with pytest.raises(Conflict, match="is not 'd1', but 'd0'"):
        await asyncio.to_thread(train)


async def test_the_blocks_error_is_raised_even_if_deleting_the_sampler_fails(
    url: str,
) -> None:
    def train() -> None:
        with (
            RolloutClient(url) as client,
            SamplerClient(client, "s", SamplerSpec(), candidates()) as sampler,
        ):
            sampler.draw("d", DrawSpec(target=1))
            client.delete_sampler("s")
            raise RuntimeError("the training failed")

    with pytest.raises(RuntimeError, match="the training failed"):
        await asyncio.to_thread(train)


async def test_a_sampler_that_cannot_be_deleted_is_an_error_of_its_own(url: str) -> None:
    def train() -> None:
        with RolloutClient(url) as client, SamplerClient(client, "s", SamplerSpec(), candidates()):
            pass

    with pytest.raises(ServiceCallError, match="there is no sampler"):
        await asyncio.to_thread(train)
