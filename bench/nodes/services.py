"""A front, and so many services, each a process of its own."""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.nodes.agent import AGENT
from bench.nodes.engine import WaitingEngine, waiting_engine
from bench.nodes.load import Window, measure
from prorl_service import local

SLOTS = 16
"""Rollouts that a service runs at a time."""
STARTED_AT_ONCE = 4
SERVE = (
    *AGENT,
    *("--sandbox", "process", "--warm-sandboxes", "0", "--drain-s", "0"),
    *("--run-workers", str(SLOTS), "--init-workers", "4", "--ready-rollouts", "4"),
)
WARM_S, WINDOW_S = 30.0, 100.0

Row = dict[str, object]


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


def scaling(counts: tuple[int, ...]) -> Iterator[Row]:
    """Measures one fleet after the other, each dominated by waiting."""
    for count in counts:
        yield {"services": count, "started_by": "processes", **_figures(count, mean_s=10.0)}


def saturated(count: int) -> Row:
    """Measures services whose calls are so short that processors are all that limits them."""
    figures = _figures(count, mean_s=0.1, window_s=30.0)
    return {"services": count, "started_by": "processes", **figures}


def _figures(count: int, *, mean_s: float, window_s: float = WINDOW_S) -> Row:
    with TemporaryDirectory(prefix="prorl-bench-") as directory:
        place = Path(directory)
        with waiting_engine(place) as engine, fleet(place, engine, count) as front:
            engine.mean_s = mean_s
            at = (front.url, front.pid)
            slots = SLOTS * count
            window = asyncio.run(measure(at, engine, slots, warm_s=WARM_S, window_s=window_s))
    return figures_of(window, mean_s)


def figures_of(window: Window, mean_s: float) -> Row:
    return {
        "call_s": mean_s,
        "busy": round(window.busy, 4),
        "rollouts_per_s": round(window.rollouts_per_s, 2),
        "front_ms": round(window.front_ms, 2),
        "all_ms": round(window.all_ms, 2),
        "cores": round(window.quiet.cpu_share, 3),
        "problem": window.quiet.problem,
        "load_1m": round(os.getloadavg()[0], 1),
    }
