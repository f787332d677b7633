"""Answers to callers while the journal cannot be written, and after the wall clock jumps."""

import sqlite3
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.rollouts.journal import Journal, threads
from prorl_service.schemas import Blame, Message, RolloutState
from prorl_service.schemas.sampling import DrawSpec, DrawState, SamplerSpec
from prorl_service.testing import StubEngine
from tests.server.application import Settings, serving, until
from tests.server.draws import drawn, scored_settings
from tests.server.scored_agent import scored


@pytest.fixture
def settings(engine: StubEngine, tmp_path: Path) -> Settings:
    return replace(scored_settings(engine), journal=tmp_path / "journal.sqlite")


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Connections by which the journals of services write."""
    found: list[sqlite3.Connection] = []

    class Known(Journal):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self._file.writer)

    monkeypatch.setattr("prorl_service.server.compose.Journal", Known)
    monkeypatch.setattr(threads, "RETRY_S", 0.05)
    return found


@pytest.fixture
async def url(settings: Settings, connections: list[sqlite3.Connection]) -> AsyncIterator[str]:
    async with serving(settings) as address:
        yield address


@pytest.fixture
async def client(url: str) -> AsyncIterator[AsyncRolloutClient]:
    async with AsyncRolloutClient(url, retry_s=0) as impatient:
        yield impatient


async def test_calls_that_write_are_answered_while_nothing_can_be_written(
    client: AsyncRolloutClient, connections: list[sqlite3.Connection]
) -> None:
    running = scored("slow", 0, 1, sleep=60)
    await client.submit([running])
    await client.create_sampler("s", SamplerSpec())
    connections[0].execute("PRAGMA query_only = 1")
    for call in (
        client.submit([scored("g", 0, 1)]),
        client.cancel(running.rollout_ids()),
        client.create_sampler("t", SamplerSpec()),
        client.open_draw("s", "d", DrawSpec(target=1)),
        client.delete_sampler("s"),
    ):
        with pytest.raises(ServiceCallError, match="is its disk full") as refusal:
            await call
        assert refusal.value.http_status == 503
    await client.health()
    assert "cannot be written" in ((await client.status()).failure or "")
    assert (await client.sampler("s")).sampler_id == "s"
    with pytest.raises(ServiceCallError, match="there is no sampler 't'"):
        await client.sampler("t")

    connections[0].execute("PRAGMA query_only = 0")
    await until(client.status, lambda status: status.failure is None)
    ended = await client.cancel(running.rollout_ids())
    assert {one.state for one in ended} == {RolloutState.CANCELLED}
    await client.create_sampler("t", SamplerSpec())
    await client.delete_sampler("s")


async def test_a_journal_whose_thread_ended_makes_the_service_unhealthy(
    client: AsyncRolloutClient, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: object) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(threads.Writer, "_write", end)
    with pytest.raises(ServiceCallError, match="its thread ended"):
        await client.submit([scored("g", 0, 1)])
    assert (await http.get("/health")).status_code == 503
    assert "MemoryError" in ((await client.status()).failure or "")
    with pytest.raises(ServiceCallError, match="its thread ended"):
        await client.create_sampler("s", SamplerSpec())


@pytest.mark.slow
async def test_only_a_rollout_that_the_journal_does_not_take_fails(
    client: AsyncRolloutClient, connections: list[sqlite3.Connection]
) -> None:
    large, small = scored("large", 1, sleep=1), scored("small", 1, sleep=1)
    large.task.messages = [Message(role="user", content="Go on. " * 400)]
    await client.submit([large, small])
    connections[0].setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5_000)
    refused, written = await client.wait(["large.0", "small.0"], 60)
    assert written.state is RolloutState.DONE
    assert refused.state is RolloutState.FAILED
    assert refused.error is not None
    assert (refused.error.kind, refused.error.blame) == ("UnwritableAnswer", Blame.AGENT)
    assert (await client.status()).failure is None


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
async def test_a_wall_clock_that_jumps_ends_no_draw(
    client: AsyncRolloutClient, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    await client.create_sampler("s", SamplerSpec())
    await client.open_draw("s", "d", DrawSpec(target=1, deadline_s=600))
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + jump_s)
    await client.add_candidates("s", [scored("easy", 1, 1), scored("g", 0, 1, sleep=0.2)])
    assert (await drawn(client)).state is DrawState.COMPLETE


@pytest.mark.slow
async def test_a_restart_does_not_restart_a_deadline(settings: Settings) -> None:
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.create_sampler("s", SamplerSpec())
        await client.open_draw("s", "d", DrawSpec(target=1, deadline_s=1))

        async def has_been_open() -> bool:
            await client.add_candidates("s", [])
            return time.monotonic() > began_at + 0.5

        began_at = time.monotonic()
        await until(has_been_open)
    async with serving(replace(settings, resume=True)) as url, AsyncRolloutClient(url) as client:
        assert (await drawn(client)).state is DrawState.OVERDUE
