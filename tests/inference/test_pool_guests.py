"""Backends that trainers add and remove: leases, limits, models and weights."""

import asyncio
from pathlib import Path

import httpx
import pytest

from prorl_service.errors import BackendRejected, BackendUnavailable, Conflict
from prorl_service.inference.engines.base import EngineInfo
from prorl_service.inference.member import PoolMember
from prorl_service.schemas import BackendSpec, BackendState, Push
from prorl_service.testing import StubEngine
from tests.inference.pools import call, id_of, pool_of, until, upload
from tests.waits import condition

# --- leases and limits --------------------------------------------------------------------------


async def test_a_backend_that_is_not_added_again_is_removed_and_one_that_is_stays(
    engines: list[StubEngine], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, _ = engines
    async with pool_of([], tmp_path) as pool:
        await pool.add(BackendSpec(url=first.url, lease_s=0.3))
        await pool.add(BackendSpec(url=first.url, lease_s=3600))
        await pool.add(BackendSpec(url=second.url, lease_s=0.3))  # the first would expire earlier
        await condition(lambda: len(pool.statuses()) == 1)
        assert pool.statuses()[0].url == first.url
        assert f"{id_of(second)} removed: it was not added again for 0.3 s" in caplog.text
        assert pool.background.failure is None
        with pool.session("r") as generator:
            assert await call(generator) == id_of(first)


async def test_removing_a_backend_ends_its_lease(
    engines: list[StubEngine], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guest, other, _ = engines
    async with pool_of([], tmp_path) as pool:
        await pool.add(BackendSpec(url=guest.url, lease_s=0.2))
        await pool.remove(id_of(guest))
        await pool.add(BackendSpec(url=guest.url))
        await pool.add(BackendSpec(url=other.url, lease_s=0.2))
        await condition(lambda: len(pool.statuses()) == 1)
        assert pool.statuses()[0].url == guest.url
        assert f"{id_of(guest)} removed" not in caplog.text


async def test_the_last_limit_on_a_backends_concurrent_calls_counts(
    engine: StubEngine, tmp_path: Path
) -> None:
    engine.latency_s = 3600
    async with pool_of([], tmp_path) as pool:
        await pool.add(BackendSpec(url=engine.url, max_calls=2))
        with pool.session("r") as generator:
            talks = [asyncio.create_task(call(generator)) for _ in range(4)]
            await condition(lambda: engine.calls == 2)
            assert pool.statuses()[0].in_flight == 2
            await pool.add(BackendSpec(url=engine.url, max_calls=3))
            await condition(lambda: engine.calls == 3)
            assert pool.statuses()[0].in_flight == 3
            for talk in talks:
                talk.cancel()
            await asyncio.gather(*talks, return_exceptions=True)


# --- another model ------------------------------------------------------------------------------


async def test_another_model_may_come_after_the_last_backend_has_left(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    first, second, _ = engines
    second.model_id = "another"
    async with pool_of([first], tmp_path) as pool:
        with pool.session("old") as generator:
            await call(generator)
            with pytest.raises(Conflict, match="another"):
                await pool.add(BackendSpec(url=second.url))
            await pool.remove(id_of(first))
            with pytest.raises(BackendUnavailable, match="no inference engine"):
                pool.model.require()
            waiting = asyncio.create_task(call(generator))
            await pool.add(BackendSpec(url=second.url))
            with pytest.raises(BackendUnavailable, match="began with 'stub'"):
                await waiting
        assert second.calls == 0
        with pool.session("new") as generator:
            assert await call(generator) == id_of(second)


async def test_rollouts_continue_when_their_model_comes_back_elsewhere(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    first, second, _ = engines
    async with pool_of([first], tmp_path) as pool:
        with pool.session("r") as generator:
            await call(generator)
            await pool.remove(id_of(first))
            waiting = asyncio.create_task(call(generator))
            await pool.add(BackendSpec(url=second.url))
            assert await waiting == id_of(second)


async def test_pushed_weights_keep_other_models_away(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    first, second, third = engines
    second.model_id = "another"
    async with pool_of([first], tmp_path) as pool:
        await pool.weights.load_stream(upload(b"trained"))
        await pool.remove(id_of(first))
        with pytest.raises(Conflict, match="another"):
            await pool.add(BackendSpec(url=second.url))
        await pool.add(BackendSpec(url=third.url))
        assert (second.weights, third.weights) == (b"", b"trained")


async def test_refused_weights_keep_no_model_away(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    first, second, _ = engines
    first.refuses_weights, first.update_latency_s = True, 0.3
    second.model_id = "another"
    async with pool_of([first], tmp_path) as pool:
        push = asyncio.create_task(pool.weights.load_stream(upload(b"unfit")))
        await until(pool, BackendState.UPDATING, 1)
        await pool.remove(id_of(first))
        with pytest.raises(BackendRejected):
            await push
        await pool.add(BackendSpec(url=second.url))
        assert second.weights == b""


async def test_a_backend_removed_while_it_is_added_brings_no_model(
    engine: StubEngine, tmp_path: Path
) -> None:
    async with pool_of([], tmp_path) as pool:
        adding = asyncio.create_task(pool.add(BackendSpec(url=engine.url, lease_s=3600)))
        await asyncio.sleep(0)
        await pool.remove(id_of(engine))
        assert (await adding).reason == "removed"
        assert pool.model.current is None


async def test_a_backend_removed_while_it_is_added_takes_nothing_from_the_next(
    engine: StubEngine, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, slow, may_fail = PoolMember.probe, list[PoolMember](), asyncio.Event()

    async def slow_at_first(member: PoolMember, *, timeout_s: float) -> EngineInfo:
        if member.backend_id == id_of(short) and not slow:
            slow.append(member)
            await may_fail.wait()
            raise BackendUnavailable("it does not answer")
        return await probe(member, timeout_s=timeout_s)

    short = StubEngine(tiny_model, lambda _: [5], max_model_len=64)
    async with short, pool_of([engine], tmp_path) as pool:
        monkeypatch.setattr(PoolMember, "probe", slow_at_first)
        adding = asyncio.create_task(pool.add(BackendSpec(url=short.url)))
        await asyncio.sleep(0)
        await pool.remove(id_of(short))
        await pool.add(BackendSpec(url=short.url))
        assert pool.model.least_context == 64
        may_fail.set()
        with pytest.raises(BackendUnavailable, match="does not answer"):
            await adding
        assert pool.model.least_context == 64


# --- weights of their own -----------------------------------------------------------------------


async def test_the_newest_reported_version_counts_until_weights_are_pushed(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    first, second, _ = engines
    async with pool_of([first, second], tmp_path) as pool:
        assert pool.policy_version == 0
        first.version, second.version = 7, 3
        await condition(lambda: pool.policy_version == 7)
        await pool.weights.load_stream(upload(b"pushed"))
        assert pool.policy_version == 8


# --- weights that others give -------------------------------------------------------------------


async def test_a_backend_updated_by_others_serves_with_their_weights_only(
    engine: StubEngine, tmp_path: Path
) -> None:
    engine.version = 3
    async with pool_of([], tmp_path) as pool:
        await pool.add(BackendSpec(url=engine.url, policy_version=3))
        with pool.session("r") as generator:
            assert await call(generator) == id_of(engine)
            engine.restart()
            await until(pool, BackendState.UPDATING, 1)
            waiting = asyncio.create_task(call(generator))
            engine.version = 4
            await pool.add(BackendSpec(url=engine.url, policy_version=4))
            assert await waiting == id_of(engine)
        assert pool.policy_version == 4


async def test_calls_outlast_a_pause_by_others(engine: StubEngine, tmp_path: Path) -> None:
    engine.version = 3
    async with pool_of([], tmp_path) as pool, httpx.AsyncClient(base_url=engine.url) as others:
        await pool.add(BackendSpec(url=engine.url, policy_version=3))
        await others.post("/pause")
        with pool.session("r") as generator:
            frozen = asyncio.create_task(call(generator))
            await until(pool, BackendState.UPDATING, 1)
            await asyncio.sleep(0.3)  # several probes
            assert not frozen.done()
            await others.post("/resume")
            assert await frozen == id_of(engine)
        assert engine.calls == 1


async def test_backends_offered_to_other_services_have_a_state_and_a_version(
    engines: list[StubEngine], tmp_path: Path
) -> None:
    first, second, _ = engines
    async with pool_of([first, second], tmp_path) as pool:
        assert {one.policy_version for one in pool.offers()} == {None}
        await pool.weights.load_stream(upload(b"weights"), Push(after=6))
        second.status = 503
        await until(pool, BackendState.DOWN, 1)
        offers = {one.url: one for one in pool.offers()}
        assert {one.policy_version for one in offers.values()} == {7}
        states = {url: one.report and one.report.state for url, one in offers.items()}
        assert states == {first.url: BackendState.HEALTHY, second.url: BackendState.DOWN}
