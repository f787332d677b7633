"""Rows of a data set that cannot run: each costs the training only itself."""

from collections.abc import AsyncIterator

import pytest

from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import RolloutState
from prorl_service.testing import StubEngine
from prorl_verl.runs import ended
from tests.server.application import serving
from tests.server.conftest import engine  # noqa: F401
from tests.server.draws import scored_settings
from tests.server.scored_agent import scored


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
