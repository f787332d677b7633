"""Start times of sandboxes, one at a time and many at once.

Everything is in the page cache. *Cold*: no container of the image runs. *Warm*: one does. *From the
pool*: spares of the image are ready. Bare ones have run `true`; ours have answered.
"""

import asyncio
import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.frame import Found
from bench.tools import apptainer, rungs
from bench.tools.shells import environment, run_process
from bench.tools.timing import p50, ratio, row, timed_ms
from prorl_service.sandbox.base import Sandbox, SandboxProvider
from prorl_service.sandbox.host.processes import Child
from prorl_service.sandbox.kinds.bubblewrap import ISOLATION
from prorl_service.sandbox.warm_pool import WarmPool
from tests.sandbox.images.debian import debian_image
from tests.sandbox.sandboxes import image_of, new_provider

COLD, WARM, POOL = "ours cold, SIF", "ours warm, SIF", "ours from the pool, SIF"
SAME_EXEC = "apptainer exec, same options, SIF"
ROUNDS, QUICK_ROUNDS = {1: 12, 16: 3, 64: 2}, {1: 2, 16: 1}
"""Rounds, by the number of sandboxes started at once."""
TURN_STARTS, TURN_S = 10, 0.4
SPARES, POLL_S = 64, 0.005

Key = TypeVar("Key", bound=Hashable)
StartOne = Callable[[], Awaitable[object]]
Contender = Callable[[], AbstractAsyncContextManager[StartOne]]
"""Context of one batch: entering prepares it, untimed; leaving ends all that was started."""


async def measure(quick: bool) -> Found:
    contenders = _contenders()
    rows = []
    for at_once, rounds in (QUICK_ROUNDS if quick else ROUNDS).items():
        found = await timed(contenders, at_once, rounds)
        rows += [row(who, f"{at_once} at once", found[who], at_once=at_once) for who in contenders]
    alone = {who: p50(rows, who, "1 at once") for who in contenders}
    headline = {
        "warm_start_p50_ms": alone[WARM],
        "pool_start_p50_ms": alone[POOL],
        "cold_start_vs_exec_ratio": ratio(alone[COLD], alone[SAME_EXEC]),
    }
    return Found(rows, headline)


async def timed(
    contenders: Mapping[Key, Contender], at_once: int, rounds: int
) -> dict[Key, list[float]]:
    """Has contenders take turns in random order; returns the milliseconds of each one's starts."""
    times: dict[Key, list[float]] = {key: [] for key in contenders}
    rng = random.Random(0)
    for _ in range(rounds):
        for key in rng.sample([*contenders], len(contenders)):
            is_once = at_once > 1 or "cold" in str(key)
            times[key] += await _turn(contenders[key], at_once, is_once)
    return times


async def _turn(contender: Contender, at_once: int, is_once: bool) -> list[float]:
    """Runs one batch; of single starts several, since they differ, unless the first changes them.
    Times each start from its batch's beginning."""
    times: list[float] = []
    async with contender() as start:
        end = time.perf_counter() + TURN_S
        for _ in range(TURN_STARTS):
            times += await asyncio.gather(*(timed_ms(start) for _ in range(at_once)))
            if is_once or time.perf_counter() > end:
                break
    return times


def _contenders() -> dict[str, Contender]:
    sif = debian_image()
    return {
        SAME_EXEC: _exec(sif, apptainer.SAME_OPTIONS),
        "apptainer exec -C, SIF": _exec(sif, apptainer.CONTAINED),
        COLD: partial(ours, "apptainer", is_warm=False),
        WARM: partial(ours, "apptainer", is_warm=True),
        POOL: _from_pool,
        "bare bwrap": partial(_bare, _bwrap_command(), None),
        rungs.BUBBLEWRAP: partial(ours, "bubblewrap", is_warm=True),
    }


def _exec(image: Path, options: list[str]) -> Contender:
    command = apptainer.apptainer("exec", *options, str(image), "true")
    run_process(command, user=apptainer.CONTAINER_USER)  # raises if it does not work
    return partial(_bare, command, apptainer.CONTAINER_USER)


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


async def _run_to_end(command: list[str], user: int | None) -> None:
    """Runs a command, started in the same way as ours are."""
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        child = Child(command, stdin=null, env=environment(), cwd="/", user=user)
    finally:
        os.close(null)
    await child.ended
    child.close()


@asynccontextmanager
async def ours(kind: str, *, is_warm: bool) -> AsyncIterator[StartOne]:
    """`is_warm`: a sandbox of the image runs already."""
    async with new_provider(kind) as provider, _sandboxes(provider, image_of(kind)) as start:
        if is_warm:
            await start()
        yield start


@asynccontextmanager
async def _from_pool() -> AsyncIterator[StartOne]:
    image = image_of("apptainer")
    async with (
        WarmPool(new_provider("apptainer"), spares=SPARES) as pool,
        _sandboxes(pool, image) as start,
    ):
        await start()  # tells it the limits that are wanted
        pool.prewarm([image] * SPARES)
        while pool.counts()["warm"] != SPARES:  # noqa: ASYNC110 - the pool has no event
            await asyncio.sleep(POLL_S)
        yield start


@asynccontextmanager
async def _sandboxes(provider: SandboxProvider, image: str | None) -> AsyncIterator[StartOne]:
    running: list[Sandbox] = []

    async def start() -> None:
        running.append(provider.create(image=image, limits=rungs.LIMITS))
        await running[-1].start()

    try:
        yield start
    finally:
        await asyncio.gather(*(sandbox.stop() for sandbox in running))
