import asyncio
import os
from pathlib import Path

import pytest

from prorl_service.errors import (
    BackendRejected,
)
from prorl_service.inference.sources import WeightFile
from prorl_service.schemas import BackendState, Push
from prorl_service.testing import StubEngine
from tests.inference.pools import broken_upload, call, generate, id_of, kept, pool_of, until, upload
from tests.waits import condition


@pytest.mark.slow
async def test_nothing_is_sampled_with_the_weights_an_engine_restarted_with(
    engine: StubEngine, tmp_path: Path
) -> None:
    async with pool_of([engine], tmp_path) as pool:
        await pool.weights.load_stream(upload(b"trained"))
        with pool.session("r") as generator:
            for _ in range(5):
                engine.restart()  # no probe has seen it yet
                generation = await generate(generator)
                assert set(generation.policy_versions) == {1}


async def test_a_call_that_waits_for_an_update_is_woken_by_its_refusal(
    engine: StubEngine, tmp_path: Path
) -> None:
    async with pool_of([engine], tmp_path, wait_for_backend_s=60) as pool:
        await pool.weights.load_stream(upload(b"old"))
        engine.refuses_weights, engine.update_latency_s = True, 0.3
        push = asyncio.create_task(pool.weights.load_stream(upload(b"new"), Push(after=1)))
        await until(pool, BackendState.UPDATING, 1)
        with pool.session("r") as generator:
            async with asyncio.timeout(30):
                await call(generator)
        with pytest.raises(BackendRejected):
            await push
        assert (engine.weights, pool.policy_version) == (b"old", 1)


async def test_an_engine_that_was_never_down_wakes_calls_after_its_update(
    engine: StubEngine, tmp_path: Path
) -> None:
    async with pool_of([engine], tmp_path, wait_for_backend_s=60) as pool:
        await pool.weights.load_stream(upload(b"trained"))
        engine.update_latency_s = 0.3
        engine.restart()
        await until(pool, BackendState.UPDATING, 1)
        with pool.session("r") as generator:
            async with asyncio.timeout(30):
                await call(generator)
        assert engine.weights == b"trained"


@pytest.mark.slow
async def test_an_update_does_not_count_as_waiting(engine: StubEngine, tmp_path: Path) -> None:
    engine.update_latency_s = 0.8
    async with pool_of([engine], tmp_path, wait_for_backend_s=0.2) as pool:
        push = asyncio.create_task(pool.weights.load_stream(upload(b"new")))
        await until(pool, BackendState.UPDATING, 1)
        with pool.session("r") as generator:
            await call(generator)
        await push


async def test_concurrent_uploads_take_turns(engines: list[StubEngine], tmp_path: Path) -> None:
    async with pool_of(engines, tmp_path) as pool:
        contents = [bytes([65 + i]) for i in range(4)]
        reports = await asyncio.gather(
            *(pool.weights.load_stream(upload(c, c, c), Push(after=6)) for c in contents)
        )
        assert all(len(report.applied) == 3 for report in reports)
        assert [{engine.weights} for engine in engines] == [kept(tmp_path)] * 3


async def test_a_failed_upload_leaves_nothing_behind(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path) as pool:
        with pytest.raises(ConnectionResetError):
            await pool.weights.load_stream(broken_upload())
        assert kept(tmp_path) == set()
        await pool.weights.load_stream(upload(b"good"))
        await until(pool, BackendState.HEALTHY, 3)
        engines[0].refuses_weights = True
        with pytest.raises(BackendRejected):
            await pool.weights.load_stream(upload(b"bad"), Push(after=1))
        assert kept(tmp_path) == {b"good"}


async def test_weights_that_one_engine_refuses_are_taken_back_from_the_others(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    picky = engines[0]
    async with pool_of(engines, tmp_path) as pool:
        await pool.weights.load_stream(upload(b"old"))
        picky.refuses_weights = True
        with pytest.raises(BackendRejected):
            await pool.weights.load_stream(upload(b"new"), Push(after=1))
        await condition(lambda: {engine.weights for engine in engines} == {b"old"})
        await until(pool, BackendState.HEALTHY, 3)
        assert {status.policy_version for status in pool.statuses()} == {1}


async def test_engines_that_took_refused_first_weights_are_down_until_a_restart(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    picky, *others = engines
    picky.refuses_weights = True
    async with pool_of(engines, tmp_path) as pool:
        with pytest.raises(BackendRejected):
            await pool.weights.load_stream(upload(b"new"))
        await until(pool, BackendState.DOWN, 2)
        assert sum("whose update failed" in status.reason for status in pool.statuses()) == 2
        assert pool.policy_version == 0
        with pool.session("r") as generator:
            assert await call(generator) == id_of(picky)
        for engine in others:
            engine.restart()
        await until(pool, BackendState.HEALTHY, 3)


async def test_weights_that_cannot_be_read_leave_the_old_ones_in_use(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path) as pool:
        await pool.weights.load_stream(upload(b"good"))
        with pytest.raises(BackendRejected, match="absent cannot be read: No such file"):
            await pool.weights.load(WeightFile(tmp_path / "absent"))
        await until(pool, BackendState.HEALTHY, 3)
        assert pool.policy_version == 1


async def test_a_monitor_survives_weights_that_vanished(engine: StubEngine, tmp_path: Path) -> None:
    async with pool_of([engine], tmp_path) as pool:
        await pool.weights.load_stream(upload(b"trained"))
        (name,) = (one for one in os.listdir(tmp_path) if one.startswith("weights-"))
        file = tmp_path / name
        os.unlink(file)
        engine.restart()
        await until(pool, BackendState.DOWN, 1)
        reason = f"{file}, with the weights of version 1, is gone"
        hint = "the trainer's next weights bring it back"
        assert pool.statuses()[0].reason == f"{reason} ({hint})"
        await pool.weights.load_stream(upload(b"again"), Push(after=1))
        await condition(lambda: engine.weights == b"again")
