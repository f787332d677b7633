import asyncio
import logging
import time
from pathlib import Path

import pytest

from prorl_service.server.watchdog import watch_loop


async def blocks() -> None:
    time.sleep(2)  # noqa: ASYNC251


@pytest.mark.slow
async def test_code_that_blocks_the_event_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    watching = asyncio.create_task(watch_loop())
    await asyncio.sleep(0.1)
    await asyncio.create_task(blocks(), name="RUN of agent 'guess', rollout g.0")
    while not caplog.records:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    watching.cancel()
    (record,) = caplog.records
    line = blocks.__code__.co_firstlineno + 1
    assert record.levelno == logging.WARNING
    assert "by RUN of agent 'guess', rollout g.0, at" in record.message
    assert f"{Path(__file__).name}:{line};" in record.message


@pytest.mark.slow
async def test_a_loop_that_only_waits_is_not_blocked(caplog: pytest.LogCaptureFixture) -> None:
    watching = asyncio.create_task(watch_loop())
    await asyncio.create_task(asyncio.sleep(1.5), name="innocent")
    watching.cancel()
    assert "innocent" not in caplog.text
