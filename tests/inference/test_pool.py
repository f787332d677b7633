import asyncio
from collections import Counter
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from prorl_service.errors import (
    BackendError,
    BackendUnavailable,
    Conflict,
    InvalidRequest,
    NotFound,
)
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.inference.sources import WeightDirectory
from prorl_service.schemas import BackendSpec, BackendState
from prorl_service.testing import StubEngine
from tests.inference.pools import call, id_of, pool_of, until, upload
from tests.waits import condition


async def test_every_call_of_a_rollout_goes_to_one_backend(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path) as pool:
        with pool.session("r") as generator:
            chosen = await call(generator)
            with ExitStack() as stack:
                others = [stack.enter_context(pool.session(f"other-{i}")) for i in range(8)]
                homes = [await call(other) for other in others]
                for other, home in zip(others, homes, strict=True):
                    if home != chosen:
                        other.unpin()  # only the chosen engine stays loaded
                assert chosen in homes
                assert await call(generator) == chosen


async def test_rollouts_spread_evenly_and_free_their_place(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path) as pool:
        for _ in range(2):
            with ExitStack() as stack:
                chosen = [await call(stack.enter_context(pool.session(f"r{i}"))) for i in range(30)]
            assert set(Counter(chosen).values()) == {10}


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
        assert pool.background.failure is None


async def test_a_backend_named_before_it_runs_joins_later(
    engine: StubEngine, tmp_path: Path
) -> None:
    engine.status = 503
    async with BackendPool(tmp_path, PoolConfig(probe_interval_s=0.1)) as pool:
        status = await pool.add(BackendSpec(url=engine.url), must_answer=False)
        assert status.state is BackendState.DOWN
        with pytest.raises(BackendUnavailable, match="no inference engine"):
            pool.model.require()
        engine.status = 200
        await until(pool, BackendState.HEALTHY, 1)
        assert pool.model.require().name == "stub"


async def test_an_empty_weight_directory_reaches_no_engine(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path / "spool") as pool:
        with pytest.raises(InvalidRequest, match=r"no \*\.safetensors"):
            await pool.weights.load(WeightDirectory(str(tmp_path)))
        assert pool.policy_version == 0


# --- membership ---------------------------------------------------------------------------------


async def test_a_backend_added_twice_concurrently_joins_once(
    engine: StubEngine, tmp_path: Path
) -> None:
    spec = BackendSpec(url=engine.url)
    async with pool_of([], tmp_path) as pool:
        statuses = await asyncio.gather(*(pool.add(spec) for _ in range(3)))
        assert {status.state for status in statuses} == {BackendState.HEALTHY}
        assert len(pool.statuses()) == 1
        assert pool.background.failure is None
        await pool.remove(id_of(engine))
        engine.status = 503
        results = await asyncio.gather(*(pool.add(spec) for _ in range(3)), return_exceptions=True)
        assert {type(result) for result in results} == {BackendUnavailable}
        assert pool.statuses() == []


async def test_only_one_of_two_models_that_arrive_together_is_used(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engines[1].model_id = "another"
    async with pool_of([], tmp_path) as pool:
        specs = [BackendSpec(url=engine.url) for engine in engines[:2]]
        results = await asyncio.gather(*(pool.add(spec) for spec in specs), return_exceptions=True)
        assert sorted(isinstance(result, Conflict) for result in results) == [False, True]
        assert len(pool.statuses()) == 1
        assert pool.background.failure is None


@pytest.mark.slow
async def test_a_backend_removed_during_its_update_gets_no_more_calls(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    first, second, _ = engines
    first.update_latency_s = 0.5
    async with pool_of([first], tmp_path) as pool:
        with pool.session("r") as generator:
            await call(generator)
            push = asyncio.create_task(pool.weights.load_stream(upload(b"new")))
            await until(pool, BackendState.UPDATING, 1)
            await pool.remove(id_of(first))
            await push
            await pool.add(BackendSpec(url=second.url))
            assert await call(generator) == id_of(second)


# --- failing engines ----------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_call_in_flight_fails_when_its_engine_goes_down(
    engine: StubEngine, tmp_path: Path
) -> None:
    engine.latency_s = 3600
    async with pool_of([engine], tmp_path, wait_for_backend_s=0.3) as pool:
        with pool.session("r") as generator:
            hung = asyncio.create_task(call(generator))
            await condition(lambda: engine.calls == 1)
            engine.status = 503
            with pytest.raises(BackendUnavailable, match="no backend was healthy"):
                await hung
            assert pool.statuses()[0].in_flight == 0


async def test_a_cancelled_call_ends_at_its_engine(engine: StubEngine, tmp_path: Path) -> None:
    engine.latency_s = 3600
    async with pool_of([engine], tmp_path) as pool:
        with pool.session("r") as generator:
            talk = asyncio.create_task(call(generator))
            await condition(lambda: engine.in_flight == 1)
            talk.cancel()
            await condition(lambda: engine.in_flight == 0)
            assert pool.statuses()[0].in_flight == 0


async def test_an_engine_that_fails_every_call_gets_few(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    bad = engines[0]
    bad.generate_status = 500
    async with pool_of(engines, tmp_path) as pool:
        for i in range(50):
            with pool.session(f"r{i}") as generator:
                await call(generator)
    assert bad.calls == 1


@pytest.mark.slow
async def test_a_retried_call_does_not_wait_forever_for_a_removed_engine(
    engine: StubEngine, tmp_path: Path
) -> None:
    engine.generate_status = 500
    async with pool_of([engine], tmp_path, wait_for_backend_s=0.3) as pool:
        with pool.session("r") as generator:
            again = asyncio.create_task(call(generator))
            await condition(lambda: engine.calls == 1 and not engine.in_flight)
            await pool.remove(id_of(engine))
            with pytest.raises(BackendUnavailable, match="no backend was healthy"):
                await again


@pytest.mark.slow
async def test_an_engine_rests_after_consecutive_failed_calls_and_is_called_again(
    engine: StubEngine, tmp_path: Path
) -> None:
    async with pool_of([engine], tmp_path, back_off_s=2) as pool:
        with pool.session("r") as generator:
            for status in (500, 200, 500):  # a success resets the count
                engine.generate_status = status
                assert pool.statuses()[0].state is BackendState.HEALTHY
                with pytest.raises(BackendError) if status == 500 else nullcontext():
                    await call(generator)
            assert engine.calls == 7
            last = asyncio.create_task(call(generator))
            await until(pool, BackendState.DOWN, 1)
            assert "5 calls in a row failed" in pool.statuses()[0].reason
            engine.generate_status = 200
            assert await last == id_of(engine)
            assert pool.statuses()[0].state is BackendState.HEALTHY
