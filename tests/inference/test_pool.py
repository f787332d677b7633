import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, nullcontext
from pathlib import Path

import pytest

from prorl_service.errors import (
    BackendError,
    BackendRejected,
    BackendUnavailable,
    Conflict,
    InvalidRequest,
    NotFound,
)
from prorl_service.inference.backend import WeightDirectory, WeightFile
from prorl_service.inference.pool import BackendPool, PinnedGenerator, PoolConfig
from prorl_service.inference.weights import Weights
from prorl_service.schemas import BackendSpec, BackendState, Sampling
from prorl_service.testing import StubEngine


@asynccontextmanager
async def pool_of(
    engines: list[StubEngine],
    spool: Path,
    wait_for_backend_s: float = 10,
    back_off_s: float = 60,
) -> AsyncIterator[BackendPool]:
    config = PoolConfig(
        probe_interval_s=0.1, wait_for_backend_s=wait_for_backend_s, back_off_s=back_off_s
    )
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


def id_of(engine: StubEngine) -> str:
    return engine.url.removeprefix("http://")


async def upload(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        await asyncio.sleep(0.01)
        yield chunk


async def broken_upload() -> AsyncIterator[bytes]:
    yield b"half"
    raise ConnectionResetError


def kept(spool: Path) -> set[bytes]:
    return {path.read_bytes() for path in spool.iterdir()}


async def call(generator: PinnedGenerator) -> str:
    generation = await generator.generate(
        [1, 2], sampling=Sampling(), max_tokens=4, seed=None, stop_token_ids=[]
    )
    return generation.backend


async def until(pool: BackendPool, state: BackendState, count: int) -> None:
    """Wait for the monitors to see it; the test's own time-out is the budget."""
    await condition(lambda: sum(status.state is state for status in pool.statuses()) == count)


async def condition(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


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
        assert pool.background.failure is None


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


# --- weights ------------------------------------------------------------------------------------


async def test_an_engine_that_restarts_is_given_the_weights_again(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engine = engines[0]
    async with pool_of([engine], tmp_path) as pool:
        await pool.stream_weights(upload(b"trained"), version=0)
        engine.restart()
        await condition(lambda: engine.weights == b"trained")


async def test_equal_version_numbers_do_not_make_equal_weights(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engine = engines[0]
    async with pool_of([engine], tmp_path) as pool:
        await pool.stream_weights(upload(b"of run A"), version=0)
        engine.status = 503
        await until(pool, BackendState.DOWN, 1)
        report = await pool.stream_weights(upload(b"of run B"), version=0)
        assert report.pending == [id_of(engine)]
        engine.status = 200
        await until(pool, BackendState.HEALTHY, 1)
        assert engine.weights == b"of run B"


async def test_a_call_that_waits_for_an_update_is_woken_by_its_refusal(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engine = engines[0]
    async with pool_of([engine], tmp_path, wait_for_backend_s=60) as pool:
        await pool.stream_weights(upload(b"old"), version=1)
        engine.refuses_weights, engine.update_latency_s = True, 0.3
        push = asyncio.create_task(pool.stream_weights(upload(b"new"), version=2))
        await until(pool, BackendState.UPDATING, 1)
        with pool.session("r") as generator:
            async with asyncio.timeout(30):
                await call(generator)
        with pytest.raises(BackendRejected):
            await push
        assert (engine.weights, pool.policy_version) == (b"old", 1)


async def test_a_call_is_woken_when_an_engine_that_was_never_down_has_its_weights_again(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engine = engines[0]
    async with pool_of([engine], tmp_path, wait_for_backend_s=60) as pool:
        await pool.stream_weights(upload(b"trained"), version=1)
        engine.update_latency_s = 0.3
        engine.restart()
        await until(pool, BackendState.UPDATING, 1)
        with pool.session("r") as generator:
            async with asyncio.timeout(30):
                await call(generator)
        assert engine.weights == b"trained"


async def test_an_update_does_not_count_as_waiting(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engine = engines[0]
    engine.update_latency_s = 0.8
    async with pool_of([engine], tmp_path, wait_for_backend_s=0.2) as pool:
        push = asyncio.create_task(pool.stream_weights(upload(b"new"), version=1))
        await until(pool, BackendState.UPDATING, 1)
        with pool.session("r") as generator:
            await call(generator)
        await push


async def test_uploads_at_the_same_time_take_turns(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path) as pool:
        contents = [bytes([65 + i]) for i in range(4)]
        reports = await asyncio.gather(
            *(pool.stream_weights(upload(c, c, c), version=7) for c in contents)
        )
        assert all(len(report.applied) == 3 for report in reports)
        assert [{engine.weights} for engine in engines] == [kept(tmp_path)] * 3


async def test_a_failed_upload_leaves_nothing_behind(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path) as pool:
        with pytest.raises(ConnectionResetError):
            await pool.stream_weights(broken_upload(), version=1)
        assert kept(tmp_path) == set()
        await pool.stream_weights(upload(b"good"), version=1)
        engines[0].refuses_weights = True
        with pytest.raises(BackendRejected):
            await pool.stream_weights(upload(b"bad"), version=2)
        assert kept(tmp_path) == {b"good"}


async def test_weights_that_one_engine_refuses_are_taken_back_from_the_others(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    picky = engines[0]
    async with pool_of(engines, tmp_path) as pool:
        await pool.stream_weights(upload(b"old"), version=1)
        picky.refuses_weights = True
        with pytest.raises(BackendRejected):
            await pool.stream_weights(upload(b"new"), version=2)
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
            await pool.stream_weights(upload(b"new"), version=1)
        await until(pool, BackendState.DOWN, 2)
        assert sum("not accepted" in status.reason for status in pool.statuses()) == 2
        with pool.session("r") as generator:
            assert await call(generator) == id_of(picky)
        for engine in others:
            engine.restart()
        await until(pool, BackendState.HEALTHY, 3)


async def test_weights_that_cannot_be_read_leave_the_old_ones_in_use(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    async with pool_of(engines, tmp_path) as pool:
        await pool.stream_weights(upload(b"good"), version=1)
        with pytest.raises(FileNotFoundError):
            await pool.load_weights(Weights(WeightFile(tmp_path / "absent"), 2))
        await until(pool, BackendState.HEALTHY, 3)
        assert pool.policy_version == 1


async def test_a_monitor_survives_weights_that_vanished(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engine = engines[0]
    async with pool_of([engine], tmp_path) as pool:
        await pool.stream_weights(upload(b"trained"), version=1)
        (tmp_path / "1.safetensors").unlink()
        engine.restart()
        await until(pool, BackendState.DOWN, 1)
        assert "FileNotFoundError" in pool.statuses()[0].reason
        await pool.stream_weights(upload(b"again"), version=2)
        await condition(lambda: engine.weights == b"again")


# --- membership ---------------------------------------------------------------------------------


async def test_a_backend_added_twice_at_once_joins_once(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    spec = BackendSpec(url=engines[0].url)
    async with pool_of([], tmp_path) as pool:
        statuses = await asyncio.gather(*(pool.add(spec) for _ in range(3)))
        assert {status.state for status in statuses} == {BackendState.HEALTHY}
        assert len(pool.statuses()) == 1
        assert pool.background.failure is None
        await pool.remove(id_of(engines[0]))
        engines[0].status = 503
        results = await asyncio.gather(*(pool.add(spec) for _ in range(3)), return_exceptions=True)
        assert {type(result) for result in results} == {BackendUnavailable}
        assert pool.statuses() == []


async def test_of_two_models_that_arrive_at_once_one_is_used(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engines[1].model_id = "another"
    async with pool_of([], tmp_path) as pool:
        specs = [BackendSpec(url=engine.url) for engine in engines[:2]]
        results = await asyncio.gather(*(pool.add(spec) for spec in specs), return_exceptions=True)
        assert sorted(isinstance(result, Conflict) for result in results) == [False, True]
        assert len(pool.statuses()) == 1
        assert pool.background.failure is None


async def test_a_backend_removed_during_its_update_gets_no_more_calls(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    first, second, _ = engines
    first.update_latency_s = 0.5
    async with pool_of([first], tmp_path) as pool:
        with pool.session("r") as generator:
            await call(generator)
            push = asyncio.create_task(pool.stream_weights(upload(b"new"), version=1))
            await until(pool, BackendState.UPDATING, 1)
            await pool.remove(id_of(first))
            await push
            await pool.add(BackendSpec(url=second.url))
            assert await call(generator) == id_of(second)


# --- failing engines ----------------------------------------------------------------------------


async def test_a_call_in_flight_fails_when_its_engine_goes_down(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engine = engines[0]
    engine.latency_s = 3600
    async with pool_of([engine], tmp_path) as pool:
        with pool.session("r") as generator:
            hung = asyncio.create_task(call(generator))
            await condition(lambda: engine.calls == 1)
            engine.status = 503
            with pytest.raises(BackendUnavailable, match="does not answer /health"):
                await hung
            assert pool.statuses()[0].in_flight == 0


async def test_a_cancelled_call_ends_at_its_engine(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engine = engines[0]
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
    failed = 0
    async with pool_of(engines, tmp_path) as pool:
        for i in range(50):
            with pool.session(f"r{i}") as generator:
                try:
                    await call(generator)
                except BackendError:
                    failed += 1
    assert (failed, bad.calls) == (1, 1)


async def test_after_failed_calls_in_a_row_an_engine_rests(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    engine = engines[0]
    async with pool_of([engine], tmp_path, back_off_s=1) as pool:
        with pool.session("r") as generator:
            for fails in (*[True] * 4, False, *[True] * 5):  # a success starts the count anew
                engine.generate_status = 500 if fails else 200
                assert pool.statuses()[0].state is BackendState.HEALTHY
                with pytest.raises(BackendError) if fails else nullcontext():
                    await call(generator)
            await until(pool, BackendState.DOWN, 1)
            assert "5 calls in a row failed" in pool.statuses()[0].reason
            engine.generate_status = 200
            await call(generator)  # when the rest is over
            assert pool.statuses()[0].state is BackendState.HEALTHY
