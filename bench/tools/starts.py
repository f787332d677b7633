"""Start times of sandboxes, one at a time and many at once.

Everything is in the page cache. *Cold*: no container of the image runs. *Warm*: one does. *From the
pool*: spares of the image are ready. Bare ones have run `true`; ours have answered.
"""

import asyncio
import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from uuid import uuid4

from bench.frame import Found
from bench.tools import rungs
from bench.tools.instances import instance_home, start_command, stop_all
from bench.tools.rungs import CONTAINER_USER, Rung
from bench.tools.shells import environment, run_process
from bench.tools.timing import p50, ratio, row, timed_ms
from prorl_service.sandbox.base import Sandbox
from prorl_service.sandbox.host.processes import Child
from prorl_service.sandbox.kinds.bubblewrap import ISOLATION, BubblewrapProvider
from prorl_service.sandbox.warm_pool import WarmPool

COLD, WARM, POOL = "ours cold, SIF", "ours warm, SIF", "ours from the pool, SIF"
SAME_EXEC = "apptainer exec, same options, SIF"
ROUNDS, QUICK_ROUNDS = {1: 12, 16: 3, 64: 2}, {1: 2, 16: 1}
"""Rounds, by the number of sandboxes started at once."""
TURN_STARTS, TURN_S = 10, 0.4
SPARES, POLL_S = 64, 0.005

StartOne = Callable[[], Awaitable[object]]
Contender = Callable[[], AbstractAsyncContextManager[StartOne]]
"""Context of one batch: entering prepares it, untimed; leaving ends all that was started."""


async def measure(quick: bool) -> Found:
    contenders = _contenders()
    rng = random.Random(0)
    rows = []
    for at_once, rounds in (QUICK_ROUNDS if quick else ROUNDS).items():
        each: dict[str, list[float]] = {who: [] for who in contenders}
        all_ms: dict[str, list[float]] = {who: [] for who in contenders}
        for _ in range(rounds):
            for who in rng.sample([*contenders], len(contenders)):
                await _batches(who, contenders[who], at_once, each[who], all_ms[who])
        for who in contenders:
            together = round(median(all_ms[who]), 2)
            what = f"{at_once} at once"
            rows.append(row(who, what, each[who], at_once=at_once, all_ms=together))
    alone = {who: p50(rows, who, "1 at once") for who in contenders}
    headline = {
        "warm_start_p50_ms": alone[WARM],
        "pool_start_p50_ms": alone[POOL],
        "cold_start_vs_exec_ratio": ratio(alone[COLD], alone[SAME_EXEC]),
    }
    return Found(rows, headline)


async def _batches(
    who: str, contender: Contender, at_once: int, each: list[float], all_ms: list[float]
) -> None:
    """Runs one batch; of single starts several, since they differ, unless the first changes
    them."""
    async with contender() as start:
        end = time.perf_counter() + TURN_S
        for _ in range(TURN_STARTS):
            all_ms.append(await timed_ms(partial(_batch, start, at_once, each)))
            if at_once > 1 or "cold" in who or time.perf_counter() > end:
                break


async def _batch(start: StartOne, at_once: int, each: list[float]) -> None:
    """Times each start from the batch's beginning."""
    each += await asyncio.gather(*(timed_ms(start) for _ in range(at_once)))


def _contenders() -> dict[str, Contender]:
    sif = rungs.sif()
    return {
        SAME_EXEC: _exec(sif, rungs.SAME_OPTIONS),
        "apptainer exec -C, SIF": _exec(sif, rungs.CONTAINED),
        "apptainer instance start, SIF": partial(_instances, sif),
        COLD: partial(_ours, sif, keeper=False),
        WARM: partial(_ours, sif, keeper=True),
        POOL: partial(_from_pool, sif),
        "bare bwrap": partial(_bare, _bwrap_command(), None),
        rungs.BUBBLEWRAP: partial(_sandboxes, Rung("", BubblewrapProvider())),
    }


def _exec(image: Path, options: list[str]) -> Contender:
    command = [*rungs.bare_exec(image, options), "true"]
    run_process(command, user=CONTAINER_USER)  # raises if it does not work
    return partial(_bare, command, CONTAINER_USER)


def _bwrap_command() -> list[str]:
    bwrap = shutil.which("bwrap")
    assert bwrap, "bubblewrap is not installed"
    files = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    command = [bwrap, *ISOLATION, *files, "--", "/usr/bin/true"]
    run_process(command)
    return command


@asynccontextmanager
async def _bare(command: list[str], user: int | None) -> AsyncIterator[StartOne]:
    yield partial(_run_to_end, command, user)


async def _run_to_end(command: list[str], user: int | None, home: str = "/") -> None:
    """Runs a command, started in the same way as ours are."""
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        child = Child(command, stdin=null, env=environment(home), cwd="/", user=user)
    finally:
        os.close(null)
    await child.ended
    child.close()


@asynccontextmanager
async def _instances(image: Path) -> AsyncIterator[StartOne]:
    with instance_home() as home:
        try:
            yield lambda: _run_to_end(start_command(image, uuid4().hex), CONTAINER_USER, home)
        finally:
            stop_all(home)


@asynccontextmanager
async def _ours(image: Path, *, keeper: bool) -> AsyncIterator[StartOne]:
    """`keeper`: a container of the image runs already, with one sandbox."""
    async with AsyncExitStack() as stack:
        rung = Rung("", await stack.enter_async_context(rungs.apptainer()), str(image))
        if keeper:
            await stack.enter_async_context(rungs.running(rung))
        yield await stack.enter_async_context(_sandboxes(rung))


@asynccontextmanager
async def _from_pool(image: Path) -> AsyncIterator[StartOne]:
    async with AsyncExitStack() as stack:
        pool = WarmPool(rungs.apptainer(), spares=SPARES)
        rung = Rung("", await stack.enter_async_context(pool), str(image))
        await stack.enter_async_context(rungs.running(rung))  # tells it the limits that are wanted
        pool.prewarm([rung.image] * SPARES)
        while pool.counts()["warm"] != SPARES:  # noqa: ASYNC110 - the pool has no event
            await asyncio.sleep(POLL_S)
        yield await stack.enter_async_context(_sandboxes(rung))


@asynccontextmanager
async def _sandboxes(rung: Rung) -> AsyncIterator[StartOne]:
    started: list[Sandbox] = []

    async def start() -> None:
        started.append(rung.new())
        await started[-1].start()

    try:
        yield start
    finally:
        await asyncio.gather(*(sandbox.stop() for sandbox in started))
