"""CPU time of a service's turn under load: without a shelf, and with one and its page open.

The load is that of `bench.load`: 64 rollouts at once, 11 model calls each. Both services run in
turn, several rounds; the page is open in a real browser, which gets idle time only: people have it
on another machine. The figure is the processor time of the service's own process.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import psutil

from bench.load import contenders, ours
from bench.load.agent import LoadAgent
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.net import credentials
from tests.page.browser import Browser
from tests.page.chromium import browser
from tests.page.visit import show, sign_in

AT_ONCE = 64
BATCHES = 4
LATENCY_MS = 50
VOCAB_SIZE = 1024
SHOWN = {"now": "Last 15 minutes", "groups": "all 1", "timeline": "slots"}
"""Views of the open page, one a round, and a text of each: status every 2 s, lists, all events."""

Row = dict[str, object]


def measure(directory: Path, rounds: int) -> list[Row]:
    """Returns a row for each round, and the medians last."""
    model = directory / "model"
    build_tiny_model(model, vocab_size=VOCAB_SIZE)
    rows: list[Row] = []
    with browser() as chromium:
        _give_idle_time()
        for number in range(rounds):
            view = list(SHOWN)[number % len(SHOWN)]
            without = _cpu_ms(directory / f"without{number}", model)
            with_page = _cpu_ms(directory / f"with{number}", model, chromium, view)
            rows.append(_row(f"view {view}", without, with_page))
            print(rows[-1], flush=True)
    figures = [[float(str(row[name])) for row in rows] for name in ("without_ms", "with_ms")]
    return [*rows, _row("median", *map(median, figures))]


def _row(what: str, without: float, with_page: float) -> Row:
    return {
        "what": f"CPU per turn, {what}",
        "without_ms": round(without, 3),
        "with_ms": round(with_page, 3),
        "ratio": round(with_page / without, 3),
    }


def _cpu_ms(directory: Path, model: Path, chromium: Browser | None = None, view: str = "") -> float:
    """Returns the milliseconds of a turn. Without a browser, the service has no shelf."""
    directory.mkdir()
    options = [
        *("--agent", f"{LoadAgent.__module__}:{LoadAgent.__qualname__}"),
        *("--sandbox", "process", "--run-workers", str(AT_ONCE)),
        *("--journal", str(directory / "journal.sqlite")),
        *(() if chromium else ("--shelf-mb", "0")),
    ]
    kind = ours.Kind("process")
    with (
        contenders.engine(model, LATENCY_MS) as engine,
        local.service([engine], log=directory / "service.log", options=options) as service,
        RolloutClient(service.url) as client,
    ):
        ours.run(client, kind, AT_ONCE)
        with _open_page(chromium, service.url, view):
            return ours.turn_cpu_ms(client, kind, service.pid, AT_ONCE, BATCHES)


@contextmanager
def _open_page(chromium: Browser | None, url: str, view: str) -> Iterator[None]:
    if chromium is None:
        yield
        return
    tab = chromium.tab()
    _give_idle_time()
    sign_in(tab, url, credentials.make_own_token())
    tab.problems.clear()  # the answer that asked for the token
    show(tab, view, SHOWN[view])
    yield
    tab.evaluate("0")  # which reads what the page has said meanwhile
    assert not tab.problems, tab.problems
    tab.open("about:blank")


def _give_idle_time() -> None:
    """Has the browser run when nothing else does."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if "chrom" in process.name():
                os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
