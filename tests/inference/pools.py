"""Helpers shared by the tests of the backend pool."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prorl_service.inference.base import Generation
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.inference.session import RolloutSession
from prorl_service.schemas import BackendSpec, BackendState, Sampling
from prorl_service.testing import StubEngine, safetensors
from tests.waits import condition


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


def id_of(engine: StubEngine) -> str:
    return engine.url.removeprefix("http://")


async def upload(*values: bytes) -> AsyncIterator[bytes]:
    """Yields a file of weights with these values, in pieces."""
    file = safetensors(b"".join(values))
    for start in range(0, len(file), 20):
        await asyncio.sleep(0)
        yield file[start : start + 20]


async def broken_upload() -> AsyncIterator[bytes]:
    yield b"half"
    raise ConnectionResetError


def kept(spool: Path) -> set[bytes]:
    """Returns the values in the weight files."""
    files = [path for path in spool.iterdir() if not path.name.startswith("probe-")]
    return {path.read_bytes().rpartition(b"}")[2] for path in files}


async def generate(generator: RolloutSession) -> Generation:
    return await generator.generate(
        [1, 2], sampling=Sampling(), max_tokens=4, seed=None, stop_token_ids=[]
    )


async def call(generator: RolloutSession) -> str:
    return (await generate(generator)).backend


async def until(pool: BackendPool, state: BackendState, count: int) -> None:
    """Waits until monitors see `count` backends in `state`; only the test's timeout bounds it."""
    await condition(lambda: sum(status.state is state for status in pool.statuses()) == count)
