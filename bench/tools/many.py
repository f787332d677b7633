"""Many sandboxes busy at the same time in one service, and the memory they take.

Two loads: *back to back*, where every sandbox gets its next `true` as soon as the last has ended,
so that the machine is always full; and *thinking*, as with agents whose model takes time: each
sandbox waits between two actions, for 100 ms on average, exponentially distributed.
"""

import asyncio
import random
import time
from contextlib import AsyncExitStack, suppress
from functools import partial
from statistics import quantiles

import psutil

from bench.frame import Found, Row, find
from bench.tools import rungs
from bench.tools.timing import Action, row, timed_ms
from prorl_service.sandbox.base import Sandbox, SandboxProvider
from tests.sandbox.sandboxes import new_provider, new_sandbox

AT_ONCE, QUICK_AT_ONCE, BUSY = (1, 64, 256), (1, 16), 64
LOADS = {"back to back": 0.0, "thinking": 0.1}
"""Mean seconds between two actions of a sandbox."""
SECONDS, QUICK_SECONDS = 5.0, 1.0
STARTING_AT_ONCE = 16


async def measure(quick: bool) -> Found:
    rows: list[Row] = []
    async with new_provider("apptainer") as sif, new_provider("bubblewrap") as bubblewrap:
        for at_once in QUICK_AT_ONCE if quick else AT_ONCE:
            for who, provider in ((rungs.SIF, sif), (rungs.BUBBLEWRAP, bubblewrap)):
                rows += await _crowd(who, provider, at_once, QUICK_SECONDS if quick else SECONDS)
    if quick:
        return Found(rows, {})
    full, thinking = (
        find(rows, who=rungs.SIF, what=load, at_once=BUSY)["p95_ms"] for load in LOADS
    )
    headline = {
        "bash_apptainer_p95_ms_at_64": full,
        "bash_apptainer_p95_ms_at_64_thinking": thinking,
    }
    return Found(rows, headline)


async def _crowd(who: str, provider: SandboxProvider, at_once: int, seconds: float) -> list[Row]:
    before_mb = _children_pss_mb()
    async with AsyncExitStack() as stack:
        actions = await _start(provider, at_once, stack)
        pss_mb = round((_children_pss_mb() - before_mb) / at_once, 2)
        rows = []
        for load, think_s in LOADS.items():
            times, per_s = await _busy(actions, seconds, think_s)
            p95_ms = round(quantiles(times, n=20, method="inclusive")[-1], 4)
            figures = {"p95_ms": p95_ms, "per_s": round(per_s, 1), "pss_mb": pss_mb}
            rows.append(row(who, load, times, at_once=at_once, **figures))
    return rows


async def _start(provider: SandboxProvider, at_once: int, stack: AsyncExitStack) -> list[Action]:
    """Starts sandboxes, runs a command in each, and returns how to run one more in each."""
    slots = asyncio.Semaphore(STARTING_AT_ONCE)

    async def start(sandbox: Sandbox) -> Action:
        stack.push_async_callback(sandbox.stop)
        async with slots:
            await sandbox.start()
            action = partial(rungs.tool(sandbox, "bash", "command"), "true")
            await action()
        return action

    sandboxes = [new_sandbox(provider, rungs.LIMITS) for _ in range(at_once)]
    return await asyncio.gather(*map(start, sandboxes))


async def _busy(actions: list[Action], seconds: float, think_s: float) -> tuple[list[float], float]:
    """Returns the milliseconds of every action, and the actions per second of all together."""
    times: list[float] = []
    began = time.perf_counter()
    rng = random.Random(0)

    async def loop(action: Action) -> None:
        while time.perf_counter() < began + seconds:
            if think_s:
                await asyncio.sleep(rng.expovariate(1 / think_s))
            times.append(await timed_ms(action))

    await asyncio.gather(*map(loop, actions))
    return times, len(times) / (time.perf_counter() - began)


def _children_pss_mb() -> float:
    """Returns the memory of all processes below this one; shared memory counts once."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total += child.memory_full_info().pss
    return total / 2**20
