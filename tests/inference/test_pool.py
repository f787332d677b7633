import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from prorl_service.errors import (
    BackendError,
    BackendUnavailable,
    Conflict,
    InvalidRequest,
    NotFound,
)
from prorl_service.inference.backend import WeightDirectory
from prorl_service.inference.pool import BackendPool, PinnedGenerator, PoolConfig
from prorl_service.inference.weights import Weights
from prorl_service.schemas import BackendSpec, BackendState, Sampling
from prorl_service.testing import StubEngine


@asynccontextmanager
async def pool_of(
    engines: list[StubEngine], spool: Path, wait_for_backend_s: float = 10
) -> AsyncIterator[BackendPool]:
    config = PoolConfig(probe_interval_s=0.1, wait_for_backend_s=wait_for_backend_s)
    async with BackendPool(spool, config) as pool:
        for engine in engines:
            await pool.add(BackendSpec(url=engine.url))
        yield pool


@pytest.fixture
async def engines(tiny_model: Path) -> AsyncIterator[list[StubEngine]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(StubEngine(tiny_model, lambda _: [5])) for _ in range(3)
        ]


async def call(generator: PinnedGenerator) -> str:
    generation = await generator.generate(
        [1, 2], sampling=Sampling(), max_tokens=4, seed=None, stop_token_ids=[]
    )
    return generation.backend


async def until(pool: BackendPool, state: BackendState, count: int) -> None:
    """Wait for the monitors to see it; the test's own time-out is the budget."""
    while sum(status.state is state for status in pool.statuses()) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_every_call_of_a_rollout_goes_to_one_backend(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path) as pool:
        with pool.session("r") as generator:
            assert len({await call(generator) for _ in range(10)}) == 1


async def test_rollouts_spread_evenly_and_free_their_place(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path) as pool:
        for _ in range(2):
            with ExitStack() as stack:
                chosen = [await call(stack.enter_context(pool.session(f"r{i}"))) for i in range(30)]
            assert set(Counter(chosen).values()) == {10}


async def test_a_rollout_moves_on_when_its_backend_has_died(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    by_id = {engine.url.removeprefix("http://"): engine for engine in engines}
    async with pool_of(engines, tmp_path) as pool:
        with pool.session("r") as generator:
            first = await call(generator)
            by_id[first].status = 500
            with pytest.raises(BackendError):
                await call(generator)
            await until(pool, BackendState.DOWN, 1)
            assert await call(generator) != first
        by_id[first].status = 200
        await until(pool, BackendState.HEALTHY, 3)


async def test_without_a_healthy_backend_calls_wait_then_fail(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    (engine, *_) = engines
    async with pool_of([engine], tmp_path, wait_for_backend_s=0.3) as pool:
        engine.status = 503
        await until(pool, BackendState.DOWN, 1)
        with pool.session("r") as generator:
            with pytest.raises(BackendUnavailable, match="no backend was healthy"):
                await call(generator)
            engine.status = 200
            await until(pool, BackendState.HEALTHY, 1)
            await call(generator)


async def test_joining_and_leaving(engines: list[StubEngine], tmp_path: Path) -> None:
    first, second, third = engines
    async with pool_of([first], tmp_path) as pool:
        assert await pool.add(BackendSpec(url=first.url + "/")) == pool.statuses()[0]
        await pool.add(BackendSpec(url=second.url))
        await pool.remove(first.url.removeprefix("http://"))
        with pool.session("r") as generator:
            assert await call(generator) == second.url.removeprefix("http://")
        with pytest.raises(NotFound):
            await pool.remove("nobody:1")
        third.model_id = "another"
        with pytest.raises(Conflict, match="another"):
            await pool.add(BackendSpec(url=third.url))
        with pytest.raises(BackendUnavailable, match="health"):
            await pool.add(BackendSpec(url="http://127.0.0.1:9"))
        assert len(pool.statuses()) == 1


async def test_a_backend_named_before_it_runs_joins_later(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    (engine, *_) = engines
    engine.status = 503
    async with BackendPool(tmp_path, PoolConfig(probe_interval_s=0.1)) as pool:
        status = await pool.add(BackendSpec(url=engine.url), must_answer=False)
        assert status.state is BackendState.DOWN
        with pytest.raises(BackendUnavailable, match="no inference engine"):
            pool.require_model()
        engine.status = 200
        await until(pool, BackendState.HEALTHY, 1)
        assert pool.require_model().name == "stub"


async def test_an_empty_weight_directory_reaches_no_engine(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path / "spool") as pool:
        with pytest.raises(InvalidRequest, match=r"no \*\.safetensors"):
            await pool.load_weights(Weights(WeightDirectory(str(tmp_path)), 1))
        assert pool.policy_version == 0
