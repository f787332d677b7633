"""Weights pushed while no engine is in reach: the first engine that comes back decides on them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from prorl_service.errors import BackendRejected, WeightsRejected
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.inference.pushed import PushedWeights, RefusedWeights
from prorl_service.schemas import BackendSpec, BackendState, Push
from prorl_service.testing import StubEngine
from tests.inference.pools import call, kept, pool_of, until, upload
from tests.waits import condition

CONFIG = PoolConfig(probe_interval_s=0.02, wait_for_backend_s=30)


async def out_of_reach(engine: StubEngine, pool: BackendPool) -> None:
    engine.status = 503
    await until(pool, BackendState.DOWN, 1)


async def offer_unfit_weights(engine: StubEngine, pool: BackendPool) -> None:
    """Leaves the engine out of reach, and ready to refuse what it is offered."""
    await pool.weights.load_stream(upload(b"good"))
    await out_of_reach(engine, pool)
    report = await pool.weights.load_stream(upload(b"unfit"))
    assert (report.applied, len(report.pending)) == ([], 1)
    assert (pool.policy_version, pool.pushed_version) == (1, 2)
    engine.refuses_weights = True


async def come_back(engine: StubEngine) -> None:
    engine.status = 200


@pytest.mark.parametrize("wait", ["until_up", "until_serving", "call"])
async def test_whatever_waits_for_an_engine_is_told_why_the_weights_were_given_up(
    engine: StubEngine, tmp_path: Path, wait: str
) -> None:
    async with pool_of([engine], tmp_path) as pool:
        await offer_unfit_weights(engine, pool)
        with pool.session("r") as generator:
            waits: dict[str, Callable[[], object]] = {
                "until_up": pool.until_up,
                "until_serving": pool.until_serving,
                "call": lambda: call(generator),
            }
            waiting = asyncio.ensure_future(waits[wait]())  # type: ignore[call-overload]
            await asyncio.sleep(0)
            await come_back(engine)
            with pytest.raises(WeightsRejected, match=r"of version 2 were given up: .*stub"):
                await waiting


async def test_a_draw_for_refused_weights_is_refused(engine: StubEngine, tmp_path: Path) -> None:
    async with pool_of([engine], tmp_path) as pool:
        await offer_unfit_weights(engine, pool)
        pool.raise_if_refused(2)
        await come_back(engine)
        await until(pool, BackendState.HEALTHY, 1)
        pool.raise_if_refused(1)
        pool.raise_if_refused(None)
        with pytest.raises(WeightsRejected):
            pool.raise_if_refused(2)


# --- any course of events -----------------------------------------------------------------------


@dataclass
class World:
    """Some engines, a service that may be killed, and what an honest one would serve."""

    engines: list[StubEngine]
    spool: Path
    journal: bytes = b""
    pool: BackendPool | None = None
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    version: int = 0
    accepted: int = 0
    """Last version that an engine accepted."""
    offered: int | None = None

    async def keep(self, pushed: PushedWeights) -> None:
        self.journal = pushed.to_json()

    @property
    def service(self) -> BackendPool:
        assert self.pool is not None
        return self.pool

    async def start(self) -> None:
        pushed = PushedWeights.from_json(self.journal, Path()) if self.journal else PushedWeights()
        pool = BackendPool(self.spool, CONFIG, pushed=pushed, keep=self.keep)
        self.pool = await self.stack.enter_async_context(pool)
        for engine in self.engines:
            await self.pool.add(BackendSpec(url=engine.url), must_answer=False)

    async def restart(self) -> None:
        await self.stack.aclose()
        await self.start()
        await self.settle()

    async def settle(self) -> None:
        """Waits until the states of the engines are known, and those in reach serve."""
        up = sum(engine.status == 200 for engine in self.engines)
        await until(self.service, BackendState.DOWN, len(self.engines) - up)
        if up:
            await self.service.until_up()
            await condition(
                lambda: (self.service.pushed_version or 0) == self.service.policy_version
            )
            await until(self.service, BackendState.HEALTHY, up)

    async def push(self, *, is_fit: bool) -> None:
        self.version += 1
        values = b"%s %d" % (b"fit" if is_fit else b"unfit", self.version)
        for engine in self.engines:
            engine.refuses_weights = not is_fit
        is_in_reach = any(engine.status == 200 for engine in self.engines)
        is_told = self.service.refused_weights is not None
        if is_told:
            with pytest.raises(WeightsRejected, match="were given up"):
                await self.service.weights.load_stream(upload(values), Push(after=self.version - 1))
        with nullcontext() if is_fit or not is_in_reach else pytest.raises(BackendRejected):
            await self.service.weights.load_stream(upload(values), Push(after=self.version - 1))
        if is_in_reach and not is_fit:
            self.refuse()
            return
        if is_in_reach:
            self.accepted, self.offered = self.version, None
        else:
            self.offered = self.version if is_fit else -self.version

    def refuse(self) -> None:
        """Has the engines refuse the weights that are offered, if those are unfit."""
        for engine in self.engines:
            engine.refuses_weights = self.offered is not None and self.offered < 0

    async def move(self, engine: StubEngine, *, is_up: bool) -> None:
        waiting = asyncio.ensure_future(self.service.until_serving())
        was_down = all(one.status != 200 for one in self.engines)
        if is_up and engine.status != 200:
            engine.restart()
        engine.status = 200 if is_up else 503
        if is_up and was_down and self.offered is not None:
            if self.offered > 0:
                self.accepted = self.offered
                await waiting
            else:
                with pytest.raises(WeightsRejected, match=f"version {-self.offered} were given up"):
                    await waiting
            self.offered = None
        waiting.cancel()
        self.refuse()
        with suppress(WeightsRejected):
            await self.settle()

    async def check(self) -> None:
        assert self.service.policy_version == self.accepted
        up = [engine for engine in self.engines if engine.status == 200]
        assert {engine.weights for engine in up} <= (
            {b"fit %d" % self.accepted} if self.accepted else {b""}
        )
        await condition(lambda: kept(self.spool) == self.files())

    def files(self) -> set[bytes]:
        """Returns the values of the weights that are accepted, and of those that are offered."""
        offered = self.offered or 0
        fit, unfit = {self.accepted, max(offered, 0)} - {0}, {max(-offered, 0)} - {0}
        return {b"fit %d" % one for one in fit} | {b"unfit %d" % one for one in unfit}


@asynccontextmanager
async def world_of(engines: list[StubEngine], spool: Path) -> AsyncIterator[World]:
    world = World(engines, spool)
    await world.start()
    try:
        yield world
    finally:
        await world.stack.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_engines_serve_what_one_of_them_accepted_last_whatever_happens(
    engines: list[StubEngine], tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    async with world_of(engines[: 1 + seed % 2], tmp_path) as world:
        for _ in range(14):
            match random.choice(["push", "push", "unfit", "down", "down", "up", "restart"]):
                case "push":
                    await world.push(is_fit=True)
                case "unfit":
                    await world.push(is_fit=False)
                case "restart":
                    await world.restart()
                case way:
                    await world.move(random.choice(world.engines), is_up=way == "up")
            await world.check()


def test_a_journal_of_the_newest_weights_alone_is_read() -> None:
    old = (
        b'{"path": "/w", "is_streamed": false, "is_broadcast": false, "version": 3, "model": null}'
    )
    pushed = PushedWeights.from_json(old, Path())
    assert pushed.newest is not None
    assert (pushed.newest.version, pushed.offered, pushed.refusal) == (3, None, None)
    again = PushedWeights.from_json(
        replace(pushed, refusal=RefusedWeights(4, "NaN")).to_json(), Path()
    )
    assert again.refusal == RefusedWeights(4, "NaN")
    assert again.newest is not None
