"""Routers in front of engines are refused: an update never reaches one of several silently."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.errors import BackendRejected
from prorl_service.schemas import BackendSpec, BackendState, EngineGauges
from prorl_service.testing import StubEngine
from tests.inference.gauges import GaugedEngine
from tests.inference.pools import pool_of, until
from tests.inference.stub_router import StubRouter

ROUTERS = Path(__file__).parents[2] / ".venv-routers/bin"
COMMANDS = {"vllm-router": ["vllm-router"], "sglang-router": ["sglang-router", "launch"]}


@pytest.fixture
async def pair(tiny_model: Path) -> list[StubEngine]:
    """Two engines that say when they were started."""
    engines = [GaugedEngine(tiny_model, lambda _: [5]) for _ in range(2)]
    for number, one in enumerate(engines):
        one.gauges = EngineGauges(kv_tokens=1000, started_at=1000.0 + number)
    return [*engines]


async def refusal(url: str, spool: Path) -> str:
    async with pool_of([], spool) as pool:
        with pytest.raises(BackendRejected) as refused:
            await pool.add(BackendSpec(url=url))
        assert pool.statuses() == []
    assert refused.value.hint == "add each engine behind it by its own address"
    return refused.value.message


@pytest.mark.parametrize("is_listing", [True, False])
async def test_a_router_is_refused_when_it_is_added(
    pair: list[StubEngine], tmp_path: Path, is_listing: bool
) -> None:
    async with AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(one)).url for one in pair]
        router = await stack.enter_async_context(StubRouter(urls, is_listing=is_listing))
        text = await refusal(router.url, tmp_path)
    if is_listing:
        assert text == f"{router.url} is a router, not an engine"
    else:
        assert text == f"several processes answer at {router.url}: it is a router, not an engine"
    assert [one.version for one in pair] == [None, None]


async def test_one_engine_behind_a_router_is_refused_too(
    pair: list[StubEngine], tmp_path: Path
) -> None:
    async with pair[0], StubRouter([pair[0].url], is_listing=True) as router:
        text = await refusal(router.url, tmp_path)
    assert text == f"{router.url} is a router, not an engine"


async def test_an_engine_that_restarts_is_not_one_of_several(
    pair: list[StubEngine], tmp_path: Path
) -> None:
    engine = pair[0]
    assert isinstance(engine, GaugedEngine)
    async with engine, pool_of([engine], tmp_path) as pool:
        engine.gauges = EngineGauges(kv_tokens=2000, started_at=5000.0)
        while (gauges := pool.statuses()[0].gauges) is None or gauges.kv_tokens != 2000:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert pool.statuses()[0].state is BackendState.HEALTHY


@pytest.mark.slow
async def test_a_router_put_in_an_engines_place_is_down_for_good(
    pair: list[StubEngine], tmp_path: Path
) -> None:
    engine = pair[0]
    assert isinstance(engine, GaugedEngine)
    first, second = engine.gauges, engine.gauges.model_copy(update={"started_at": 2.0})
    async with engine, pool_of([engine], tmp_path) as pool:
        while pool.statuses()[0].state is BackendState.HEALTHY:
            engine.gauges = second if engine.gauges is first else first
            await asyncio.sleep(0.1)
        engine.gauges = first
        await asyncio.sleep(0.5)
        await until(pool, BackendState.DOWN, 1)
        assert "several processes answer" in pool.statuses()[0].reason


@contextmanager
def real_router(name: str, urls: list[str], directory: Path) -> Iterator[str]:
    command = [str(ROUTERS / COMMANDS[name][0]), *COMMANDS[name][1:]]
    options = ["--host", "127.0.0.1", "--policy", "round_robin", "--worker-urls", *urls]
    prometheus = ["--prometheus-port", str(local.free_port())]
    log = directory / f"{name}.log"
    with local.running([*command, *options, *prometheus], log=log) as process:
        yield process.url


@pytest.mark.processes
@pytest.mark.parametrize("name", COMMANDS)
async def test_real_routers_are_refused(name: str, pair: list[StubEngine], tmp_path: Path) -> None:
    if not (ROUTERS / COMMANDS[name][0]).exists():
        pytest.skip(f"no {name}: scripts/setup-routers brings it")
    with (
        pair[0].in_thread() as first,
        pair[1].in_thread() as second,
        real_router(name, [first.url, second.url], tmp_path) as url,
    ):
        assert await refusal(url, tmp_path) == f"{url} is a router, not an engine"
