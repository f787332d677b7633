"""A front and so many services, each a process of its own, dominated by waiting for the engine.

Groups run in a closed loop, so that services always have more than they can run.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.frame import Found, Row
from bench.load.ours import cpu_s
from bench.nodes.agent import AGENT, GROUP_SIZE, group, run
from bench.nodes.engine import WaitingEngine, waiting_engine
from bench.quiet import Watch
from prorl_service import local
from prorl_service.client import AsyncRolloutClient

COUNTS, QUICK_COUNTS = (1, 8, 64), (1,)
SLOTS = 16
"""Rollouts that a service runs at a time."""
CALLS, CALL_S, QUICK_CALL_S = 6, 10.0, 0.2
"""Model calls of a rollout, and mean seconds of each."""
AHEAD = 1.5
"""Rollouts in flight, by slots."""
STARTED_AT_ONCE = 4
SERVE = (
    *AGENT,
    *("--sandbox", "process", "--warm-sandboxes", "0", "--drain-s", "0"),
    *("--run-workers", str(SLOTS), "--init-workers", "4", "--ready-rollouts", "4"),
)
WARM_S, WINDOW_S = 30.0, 100.0
QUICK_SHARE = 0.1


def measure(quick: bool) -> Found:
    rows = []
    for count in QUICK_COUNTS if quick else COUNTS:
        with TemporaryDirectory(prefix="prorl-bench-") as name:
            place = Path(name)
            with waiting_engine(place) as engine, fleet(place, engine, count) as front:
                engine.mean_s = QUICK_CALL_S if quick else CALL_S
                rows.append(asyncio.run(_loaded(front, engine, count, quick)))
                print(f"  {rows[-1]}", flush=True)
    alone = rows[0]["busy"]
    efficiency = {row["services"]: round(row["busy"] / alone, 4) for row in rows}
    return Found(rows, {f"efficiency_{n}": efficiency[n] for n in (8, 64) if n in efficiency})


@contextmanager
def fleet(place: Path, engine: WaitingEngine, count: int) -> Iterator[local.LocalProcess]:
    """Starts `count` services, then a front over them, and yields the front."""
    directory = place / "services"
    directory.mkdir(mode=0o700)
    # A service ends with the thread that started it, so threads stay until services are stopped.
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(STARTED_AT_ONCE))

        def start(number: int) -> None:
            options = [*SERVE, "--announce", str(directory / f"s{number}.json")]
            log = place / f"s{number}.log"
            stack.enter_context(local.service([], log=log, options=options))

        list(pool.map(start, range(count)))
        journal = ("--journal", str(place / "front.sqlite"))
        options = [*AGENT, *journal, "--wait-for", str(count)]
        yield stack.enter_context(
            local.front(directory, [engine.url], log=place / "front.log", options=options)
        )


async def _loaded(front: local.LocalProcess, engine: WaitingEngine, count: int, quick: bool) -> Row:
    """`busy`: the share of the slots' time that the engine's calls took, by nominal length."""
    share, slots, ended = QUICK_SHARE if quick else 1.0, SLOTS * count, list[int]()
    async with AsyncRolloutClient(front.url) as client:
        endless = (group(CALLS) for _ in itertools.count())
        at_once = round(AHEAD * slots / GROUP_SIZE)
        running = asyncio.create_task(run(client, endless, at_once, ended))
        await _seconds(share * WARM_S, running)
        watch, began, served_s = Watch(), time.monotonic(), engine.served_s()
        used_s, before = cpu_s(front.pid), len(ended)
        await _seconds(share * WINDOW_S, running)
        took_s, rollouts = time.monotonic() - began, len(ended) - before
        row = {
            "services": count,
            "call_s": engine.mean_s,
            "busy": round((engine.served_s() - served_s) / took_s / slots, 4),
            "rollouts_per_s": round(rollouts / took_s, 2),
            "front_ms": round(1e3 * (cpu_s(front.pid) - used_s) / rollouts, 2),
            "problem": watch.quiet().problem,
        }
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return row


async def _seconds(count: float, running: "asyncio.Task[None]") -> None:
    """Waits so long, or until the load fails."""
    await asyncio.wait([running], timeout=count)
    if running.done():
        running.result()
