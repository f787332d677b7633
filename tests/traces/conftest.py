"""A collector, and services as processes of their own that send it their traces."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import AsyncRolloutClient
from prorl_service.testing import StubEngine
from tests.server.conftest import engine
from tests.server.scored_agent import SCORED
from tests.traces.agents import TELLING
from tests.traces.collector import PROMPT_EXPORT, Collector, collector

__all__ = ["engine"]

OPTIONS = (
    *("--agent", TELLING, "--agent", SCORED, "--sandbox", "process", "--warm-sandboxes", "0"),
    *("--max-attempts", "2"),
)


@pytest.fixture(name="collector")
def _collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name, value in PROMPT_EXPORT.items():
        monkeypatch.setenv(name, value)
    with collector() as running:
        yield running


@asynccontextmanager
async def service(
    engine: StubEngine, tmp_path: Path, *options: str, name: str = "service"
) -> AsyncIterator[local.LocalProcess]:
    """Started in a thread: the engine, which is this process's, must answer meanwhile."""
    log = tmp_path / f"{name}.log"
    starting = local.service([engine.url], log=log, options=[*OPTIONS, *options])
    running = await asyncio.to_thread(starting.__enter__)
    try:
        yield running
    finally:
        await asyncio.to_thread(starting.__exit__, None, None, None)


@pytest.fixture
async def client(
    engine: StubEngine, collector: Collector, tmp_path: Path
) -> AsyncIterator[AsyncRolloutClient]:
    """Client of a service that sends its traces to `collector`."""
    traced = service(engine, tmp_path, "--otel-endpoint", collector.url)
    async with traced as running, AsyncRolloutClient(running.url) as connected:
        yield connected
