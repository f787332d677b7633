"""Calls that wait for room: few are woken, the longest waiting first, and no room is lost."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from prorl_service.errors import BackendUnavailable
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.inference.routing import EngineLoad, LeastExpectedTime, RouteRequest
from prorl_service.inference.session import RolloutSession
from prorl_service.schemas import BackendSpec, Sampling
from prorl_service.testing import StubEngine
from tests.inference.pools import call, id_of, pool_of
from tests.waits import condition


class Counting(LeastExpectedTime):
    decisions = 0

    def choose(self, call: RouteRequest, loads: Mapping[str, EngineLoad]) -> str | None:
        self.decisions += 1
        return LeastExpectedTime.choose(self, call, loads)


async def numbered(pool: BackendPool, number: int) -> None:
    """Makes a rollout's only call, whose prompt ends with the rollout's number."""
    with pool.session(f"r{number}") as generator:
        await long_call(generator, 4, number)


async def long_call(generator: RolloutSession, tokens: int, number: int = 0) -> str:
    generation = await generator.generate(
        [1, number], sampling=Sampling(), max_tokens=tokens, seed=None, stop_token_ids=[]
    )
    return generation.backend


async def test_a_call_that_ends_wakes_only_calls_that_can_run(
    tiny_model: Path, tmp_path: Path
) -> None:
    router = Counting()
    async with (
        StubEngine(tiny_model, lambda _: [5]) as engine,
        BackendPool(tmp_path, PoolConfig(max_calls_per_backend=1), router=router) as pool,
    ):
        await pool.add(BackendSpec(url=engine.url))
        await asyncio.gather(*(numbered(pool, number) for number in range(100)))
        assert engine.most_in_flight == 1
    assert router.decisions < 400  # waking every waiting call: 5000


async def test_calls_run_in_the_order_they_came(tiny_model: Path, tmp_path: Path) -> None:
    order: list[int] = []

    def answer(prompt: list[int]) -> list[int]:
        order.append(prompt[-1])
        return [5]

    async with (
        StubEngine(tiny_model, answer) as engine,
        BackendPool(tmp_path, PoolConfig(max_calls_per_backend=1)) as pool,
    ):
        await pool.add(BackendSpec(url=engine.url))
        engine.latency_s = 3600
        calls = [asyncio.create_task(numbered(pool, number)) for number in range(12)]
        await condition(lambda: engine.in_flight == 1)
        engine.latency_s = 0.0
        for number in (3, 4, 11, 0):
            calls[number].cancel()
        await asyncio.wait(calls)
        assert [number for number, one in enumerate(calls) if one.cancelled()] == [0, 3, 4, 11]
        assert pool.statuses()[0].in_flight == 0
    assert order == [1, 2, 5, 6, 7, 8, 9, 10]


async def test_room_given_to_a_call_that_is_cancelled_goes_to_the_next(
    engine: StubEngine, tmp_path: Path
) -> None:
    async with BackendPool(tmp_path) as pool:
        await pool.add(BackendSpec(url=engine.url, max_calls=1))
        engine.latency_s = 3600
        first, second, third = (asyncio.create_task(numbered(pool, number)) for number in range(3))
        await condition(lambda: engine.in_flight == 1)
        engine.latency_s = 0.0
        await pool.add(
            BackendSpec(url=engine.url, max_calls=2)
        )  # `second` has room, but has not run yet
        second.cancel()
        await condition(third.done)
        assert second.cancelled()
        first.cancel()
        await asyncio.wait([first])
        assert pool.statuses()[0].in_flight == 0


async def test_a_call_that_waits_for_its_own_engine_delays_no_other(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    by_id = {id_of(engine): engine for engine in engines[:2]}
    async with BackendPool(tmp_path) as pool:
        for engine in by_id.values():
            await pool.add(BackendSpec(url=engine.url, max_calls=1))
        with pool.session("r") as generator:
            home = by_id.pop(await call(generator))
            (other,) = by_id.values()
            home.latency_s = 3600
            hanging = asyncio.create_task(call(generator))
            await condition(lambda: home.in_flight == 1)
            pinned = asyncio.create_task(call(generator))
            await numbered(pool, 1)
            assert other.calls == 1
            assert not pinned.done()
            hanging.cancel()
            pinned.cancel()
            await asyncio.wait([hanging, pinned])


# --- engines of different lengths ---------------------------------------------------------------


async def test_a_model_is_as_long_as_its_shortest_engine_in_use(
    tiny_model: Path, tmp_path: Path
) -> None:
    async with (
        StubEngine(tiny_model, lambda _: [5]) as long,
        StubEngine(tiny_model, lambda _: [5], max_model_len=64) as short,
        pool_of([long], tmp_path) as pool,
    ):
        assert pool.model.require().max_model_len == 4096
        await pool.add(BackendSpec(url=short.url))
        assert pool.model.require().max_model_len == 64
        await pool.remove(id_of(short))
        assert pool.model.require().max_model_len == 4096


async def test_calls_that_need_a_longer_engine_go_to_one(tiny_model: Path, tmp_path: Path) -> None:
    async with (
        StubEngine(tiny_model, lambda _: [5]) as long,
        StubEngine(tiny_model, lambda _: [5], max_model_len=64) as short,
        pool_of([], tmp_path) as pool,
    ):
        await pool.add(BackendSpec(url=long.url, max_calls=1))
        with pool.session("r") as generator:
            await call(generator)
            long.latency_s = 3600
            hanging = asyncio.create_task(long_call(generator, 4094))
            await condition(lambda: long.in_flight == 1)
            waiting = asyncio.create_task(numbered_long(pool))
            await pool.add(BackendSpec(url=short.url))
            await numbered(pool, 1)
            assert short.calls == 1
            assert not waiting.done()
            long.latency_s = 0.0
            hanging.cancel()
            assert await waiting == id_of(long)
            await pool.remove(id_of(long))
            with pytest.raises(BackendUnavailable, match="4096 tokens") as caught:
                await long_call(generator, 4094)
            assert caught.value.retryable
            assert await call(generator) == id_of(short)


async def numbered_long(pool: BackendPool) -> str:
    with pool.session("long") as generator:
        return await long_call(generator, 4094)
