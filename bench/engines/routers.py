"""Updates through routers in front of two engines: which are refused, and which are lost.

An update is lost if the service reports it as taken while an engine has the old weights. The real
routers come from `scripts/setup-routers`, and are left out without it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from bench.frame import Found, Row
from prorl_service.errors import BackendRejected
from prorl_service.inference.pool import BackendPool
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import BackendSpec, EngineGauges
from tests.inference.gauges import GaugedEngine
from tests.inference.pools import upload
from tests.inference.stub_router import StubRouter
from tests.inference.test_routers import COMMANDS, ROUTERS, real_router

TRIALS = 100
STUBS = ("lists its engines", "hides them, in turns", "hides them, at random")


def measure(quick: bool) -> Found:
    trials = 3 if quick else TRIALS
    real = [name for name in COMMANDS if (ROUTERS / COMMANDS[name][0]).exists()]
    with TemporaryDirectory() as directory:
        build_tiny_model(Path(directory) / "model")
        rows = [asyncio.run(_trials(Path(directory), kind, trials)) for kind in STUBS]
        rows += [asyncio.run(_trials(Path(directory), kind, 1)) for kind in real]
    return Found(rows, {"router_updates_lost": sum(row["lost"] for row in rows)})


async def _trials(directory: Path, kind: str, trials: int) -> Row:
    row: Row = {"router": kind, "trials": trials, "refused": 0, "lost": 0}
    for number in range(trials):
        pair = [GaugedEngine(directory / "model", lambda _: [5]) for _ in range(2)]
        for at, one in enumerate(pair):
            one.gauges = EngineGauges(kv_tokens=1000, started_at=1000.0 + at)
        with pair[0].in_thread() as first, pair[1].in_thread() as second:
            async with _router(directory, kind, [first.url, second.url], number) as url:
                is_taken = await _update(directory / "spool", url)
        row["refused"] += not is_taken
        row["lost"] += is_taken and len({one.version for one in pair}) > 1
    return row


@asynccontextmanager
async def _router(directory: Path, kind: str, urls: list[str], number: int) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        if kind in STUBS:
            rng = Random(number)
            order = iter(lambda: rng.choice(urls), "") if kind == STUBS[2] else None
            stub = StubRouter(urls, is_listing=kind == STUBS[0], order=order)
            yield (await stack.enter_async_context(stub)).url
        else:
            yield stack.enter_context(real_router(kind, urls, directory))


async def _update(spool: Path, url: str) -> bool:
    """Returns whether the service reports an update as taken."""
    async with BackendPool(spool) as pool:
        try:
            await pool.add(BackendSpec(url=url))
        except BackendRejected:
            return False
        report = await pool.weights.load_stream(upload(b"new"))
        return bool(report.applied)
