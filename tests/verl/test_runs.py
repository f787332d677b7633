"""Groups of a training step: they run in its span, and bad or stuck ones cost only themselves."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Literal

import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError, WaitTimeout
from prorl_service.client.trainable import failure_of
from prorl_service.schemas import BackendStatus, Group, Rollout, RolloutState
from prorl_service.testing import StubEngine
from prorl_verl.runs import ended
from tests import builders
from tests.client.parents import STEP, refusing, step
from tests.server.application import serving
from tests.server.conftest import engine  # noqa: F401
from tests.server.draws import scored_settings
from tests.server.scored_agent import scored


class StuckService(AsyncRolloutClient):
    """Ends only the first rollout of each group, even if the others are cancelled."""

    async def submit(
        self, groups: Sequence[Group], *, invalid: Literal["refuse", "fail"] = "refuse"
    ) -> list[Rollout]:
        return []

    async def stream(self, rollout_ids: object, timeout_s: float) -> AsyncGenerator[Rollout, None]:
        assert isinstance(rollout_ids, list)
        first = [one for one in rollout_ids if one.endswith(".0")]
        for one in first:
            yield builders.rollout(one)
        if pending := [one for one in rollout_ids if one not in first]:
            raise WaitTimeout(pending, timeout_s)

    async def backends(self) -> list[BackendStatus]:
        return []

    async def cancel(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        return [builders.rollout(one, state=RolloutState.RUNNING) for one in rollout_ids]


async def test_groups_continue_without_rollouts_that_do_not_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    groups = [Group(group_id=name, task=builders.task(), n=2) for name in ("g", "h")]
    async with StuckService("http://unused") as client, asyncio.timeout(30):
        found = {group.group_id: rollouts async for group, rollouts in ended(client, groups, 9)}
    assert {name: len(rollouts) for name, rollouts in found.items()} == {"g": 2, "h": 2}
    stuck = failure_of(found["g"][1])
    assert stuck is not None
    assert stuck.message == "the rollout is running"
    assert "2 rollouts do not end" in caplog.text


@pytest.fixture
async def url(engine: StubEngine) -> AsyncIterator[str]:  # noqa: F811
    async with serving(scored_settings(engine)) as address:
        yield address


async def test_a_row_that_cannot_run_fails_and_others_are_trained_on(url: str) -> None:
    bad = scored("bad", 0, 1)
    bad.task.agent = "stranger"
    async with AsyncRolloutClient(url) as client:
        groups = [scored("good", 0, 1), bad]
        found = {group.group_id: rollouts async for group, rollouts in ended(client, groups, 60)}
    assert {one.state for one in found["good"]} == {RolloutState.DONE}
    for one in found["bad"]:
        assert one.state is RolloutState.FAILED
        assert one.error is not None
        assert "no agent 'stranger'" in one.error.message


def test_what_the_manager_s_thread_submits_has_the_trainer_s_span() -> None:
    """The manager hands its work over in this way."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def submit(url: str) -> None:
        async with AsyncRolloutClient(url, retry_s=0) as client:
            async for _ in ended(client, [Group(group_id="g", task=builders.task())], 60):
                pass

    with refusing() as service:
        with step():
            submitted = asyncio.run_coroutine_threadsafe(submit(service.url), loop)
        with pytest.raises(ServiceCallError):
            submitted.result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert service.seen == [("/v1/rollouts", STEP)]
