"""Groups that a trainer wants whole, when the service does not end them in time."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Literal

import pytest

from prorl_service.client import AsyncRolloutClient, WaitTimeout
from prorl_service.client.trainable import failure_of
from prorl_service.schemas import (
    BackendStatus,
    Group,
    Rollout,
    RolloutState,
)
from prorl_verl.runs import ended
from tests import builders


def rollout(rollout_id: str, state: RolloutState) -> Rollout:
    return builders.rollout(rollout_id, state=state)


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
            yield rollout(one, RolloutState.DONE)
        if pending := [one for one in rollout_ids if one not in first]:
            raise WaitTimeout(pending, timeout_s)

    async def backends(self) -> list[BackendStatus]:
        return []

    async def cancel(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        return [rollout(one, RolloutState.RUNNING) for one in rollout_ids]


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
