"""A front that is killed and started again: its rollouts continue at their services."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import Group, Rollout
from prorl_service.testing import StubEngine
from tests.front.conftest import service
from tests.front.test_front import assert_done, ids_of, until_running
from tests.server.scored_agent import SCORED, scored

pytestmark = pytest.mark.processes

WAIT_S = 120


@asynccontextmanager
async def front(
    tmp_path: Path, engine: StubEngine, port: int | None = None
) -> AsyncIterator[local.LocalProcess]:
    """Starts a front from a thread: the engine, which is in this process, must answer meanwhile."""
    options = ["--agent", SCORED, "--journal", str(tmp_path / "front.sqlite"), "--resume"]
    directory, log = tmp_path / "services", tmp_path / "front.log"
    starting = local.front(directory, [engine.url], log=log, port=port, options=options)
    running = await asyncio.to_thread(starting.__enter__)
    try:
        yield running
    finally:
        await asyncio.to_thread(starting.__exit__, None, None, None)


@pytest.fixture
def four(tmp_path: Path) -> Iterator[list[local.LocalProcess]]:
    """Four services that run 16 rollouts at a time each."""
    wide = ("--run-workers", "16", "--init-workers", "8", "--ready-rollouts", "8")
    with ExitStack() as stack:
        yield [stack.enter_context(service(name, tmp_path, *wide)) for name in "abcd"]


async def killed_and_started_again(
    tmp_path: Path,
    engine: StubEngine,
    services: Sequence[local.LocalProcess],
    groups: Sequence[Group],
) -> list[Rollout]:
    """Kills the front once all rollouts run, starts it again, and returns the ended rollouts."""
    async with front(tmp_path, engine) as running:
        async with AsyncRolloutClient(running.url) as client:
            await client.submit(groups)
            await until_running(services, len(ids_of(groups)))
        running.kill()
    port = int(running.url.rpartition(":")[2])
    async with front(tmp_path, engine, port) as running, AsyncRolloutClient(running.url) as client:
        return await client.wait(ids_of(groups), WAIT_S)


def rows(tmp_path: Path, table: str) -> int:
    with closing(sqlite3.connect(tmp_path / "front.sqlite")) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def test_rollouts_continue_where_they_are(
    four: list[local.LocalProcess], engine: StubEngine, tmp_path: Path
) -> None:
    groups = [scored(f"g{i}", *[0, 1] * 4, sleep=15) for i in range(8)]
    ended = await killed_and_started_again(tmp_path, engine, four, groups)
    assert engine.calls <= 66
    assert_done(ended, groups)
    assert Counter(one.attempt for one in ended) == {1: 64}
    assert rows(tmp_path, "rollouts") == 64
    assert rows(tmp_path, "placements") == 0
