"""A pool whose owner, a front, reports the states of the engines."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response

from prorl_service.errors import BackendUnavailable
from prorl_service.inference.pool import BackendPool
from prorl_service.schemas import BackendSpec, BackendState, EngineReport
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.inference.pools import call, id_of, pool_of, until
from tests.waits import condition


class CountingEngine(StubEngine):
    """Counts all requests, and answers calls only while `answers` is set."""

    def __init__(self, model: Path, end_of_turn: int) -> None:
        super().__init__(model, lambda _: [5, 6, end_of_turn])
        self.requests = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def respond(self, request: Request) -> Response:
        self.requests += 1
        if request.url.path.endswith("/generate"):
            await self.answers.wait()
        return await super().respond(request)


@pytest.fixture
async def engine(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[CountingEngine]:
    async with CountingEngine(tiny_model, chat.end_of_turn_id) as stub:
        stub.version = 3
        yield stub


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[BackendPool]:
    async with pool_of([], tmp_path, back_off_s=0.2) as empty:
        yield empty


async def report(
    pool: BackendPool, engine: StubEngine, state: BackendState, version: int = 3, reason: str = ""
) -> None:
    told = EngineReport(state=state, policy_version=version, reason=reason)
    await pool.add(BackendSpec(url=engine.url, policy_version=version, report=told))


async def looks(pool: BackendPool, count: int) -> None:
    """Returns when the pool has looked at its backends `count` times."""
    seen = 0

    def note() -> None:
        nonlocal seen
        seen += 1

    pool.watch(note)
    await condition(lambda: seen >= count)


async def test_an_engine_that_is_reported_is_not_asked(
    engine: CountingEngine, pool: BackendPool
) -> None:
    await report(pool, engine, BackendState.HEALTHY)
    joined = engine.requests
    await looks(pool, 5)
    await report(pool, engine, BackendState.HEALTHY)
    await looks(pool, 5)
    assert engine.requests == joined
    with pool.session("r") as generator:
        assert await call(generator) == id_of(engine)
    await looks(pool, 3)
    assert engine.requests == joined + 1


@pytest.mark.slow
async def test_an_engine_whose_calls_fail_is_asked_until_it_answers(
    engine: CountingEngine, pool: BackendPool
) -> None:
    await report(pool, engine, BackendState.HEALTHY)
    engine.status = 503
    with pool.session("r") as generator:
        failing = asyncio.create_task(call(generator))
        await until(pool, BackendState.DOWN, 1)
        engine.status = 200
        assert await failing == id_of(engine)
    await condition(lambda: pool.statuses()[0].state is BackendState.HEALTHY)
    await looks(pool, 5)  # the last failure is forgotten
    await asyncio.sleep(0.5)
    asked = engine.requests
    await looks(pool, 5)
    assert engine.requests == asked


async def test_calls_fail_when_their_engine_is_reported_down(
    engine: CountingEngine, pool: BackendPool
) -> None:
    await report(pool, engine, BackendState.HEALTHY)
    engine.answers.clear()
    with pool.session("r") as generator:
        calling = asyncio.create_task(call(generator))
        await condition(lambda: pool.statuses()[0].in_flight == 1)
        await report(pool, engine, BackendState.DOWN, reason="it hangs")
        await until(pool, BackendState.DOWN, 1)
        assert pool.statuses()[0].reason == "it hangs"
        engine.answers.set()
        await report(pool, engine, BackendState.HEALTHY)
        assert await calling == id_of(engine)


async def test_a_reported_update_stops_the_clock_and_sets_the_version(
    engine: CountingEngine, pool: BackendPool
) -> None:
    await report(pool, engine, BackendState.HEALTHY)
    joined = engine.requests
    await report(pool, engine, BackendState.UPDATING)
    await until(pool, BackendState.UPDATING, 1)
    engine.version = 4
    await report(pool, engine, BackendState.HEALTHY, version=4)
    await until(pool, BackendState.HEALTHY, 1)
    assert pool.states() == {id_of(engine): (BackendState.HEALTHY, 4)}
    assert engine.requests == joined


async def test_an_engine_that_was_lent_meanwhile_is_asked_until_it_is_back(
    engine: CountingEngine, pool: BackendPool
) -> None:
    await report(pool, engine, BackendState.HEALTHY)
    engine.lend()
    with pool.session("r") as generator:
        calling = asyncio.create_task(call(generator))
        await until(pool, BackendState.UPDATING, 1)
        engine.take_back()
        assert await calling == id_of(engine)


@pytest.mark.slow
async def test_an_engine_that_stays_silent_is_asked(
    engine: CountingEngine, pool: BackendPool
) -> None:
    await report(pool, engine, BackendState.HEALTHY)
    engine.answers.clear()
    with pool.session("r") as generator:
        calling = asyncio.create_task(call(generator))
        await condition(lambda: engine.requests > 0 and pool.statuses()[0].in_flight == 1)
        engine.status = 503
        await until(pool, BackendState.DOWN, 1)
        calling.cancel()
        with pytest.raises((asyncio.CancelledError, BackendUnavailable)):
            await calling
