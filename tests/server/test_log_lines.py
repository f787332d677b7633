"""Lines in the log, for an operator, while rollouts end."""

import logging

import pytest

from prorl_service.client import AsyncRolloutClient
from prorl_service.rollouts.inflight import MAX_WARNINGS
from tests.server.application import finished, group

pytestmark = pytest.mark.processes


async def test_an_ended_group_is_one_line(
    client: AsyncRolloutClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "prorl_service.rollouts.inflight")
    await finished(client, group("g", n=2))
    (record,) = (one for one in caplog.records if one.message.startswith("group "))
    assert record.message.startswith("group g: 2 done, reward 1.00 to 1.00 (mean 1.00), 2.0 turns,")


async def test_warnings_of_failed_rollouts_are_limited(
    client: AsyncRolloutClient, caplog: pytest.LogCaptureFixture
) -> None:
    count = MAX_WARNINGS + 20
    await finished(client, group("late", n=count, init_timeout_s=1e-6))
    warnings = [one for one in caplog.records if one.message.startswith("rollout late.")]
    assert 1 <= len(warnings) < count
    assert all(one.levelno == logging.WARNING for one in warnings)
    assert "failed in INIT, blame " in warnings[0].message
    assert "INIT did not finish within 1e-06 s" in warnings[0].message
