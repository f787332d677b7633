"""`prorl top`: what a service does, again and again."""

import sys
import time
from collections import deque
from contextlib import suppress
from typing import Annotated

from cyclopts import Parameter
from pydantic import PositiveFloat
from rich.console import Group as Stack
from rich.live import Live
from rich.table import Table
from rich.text import Text

from prorl_service.cli.figures import Line, heading, lines
from prorl_service.cli.service import DEFAULT_URL, Url, connected
from prorl_service.cli.status import print_status
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.schemas import ServiceStatus
from prorl_service.utils.visible import visible_line

RATE_S = 60.0
"""Seconds over which rollouts per second are counted."""


def top(
    *,
    url: Url = DEFAULT_URL,
    every_s: PositiveFloat = 2.0,
    once: bool = False,
    as_json: Annotated[bool, Parameter("--json")] = False,
) -> None:
    """Show what a service is doing, again and again; Ctrl-C ends it.

    Parameters
    ----------
    every_s
        Seconds between two looks.
    once
        Look once.
    as_json
        Look once, and print JSON.
    """
    if once or as_json:
        print_status(url, as_json=as_json)
        return
    with connected(url, retry_s=0.0) as client, suppress(KeyboardInterrupt):
        _watch(client, url, every_s)


def _watch(client: RolloutClient, url: str, every_s: float) -> None:
    rates = Rates()
    shown: ServiceStatus | None = None
    with Live(screen=sys.stdout.isatty(), auto_refresh=False) as live:
        while True:
            problem = ""
            try:
                shown = client.status()
                rates.add(time.monotonic(), shown)
            except ServiceCallError as error:
                problem = f"{error.message.splitlines()[0]}; asked again every {every_s:g} s"
            live.update(page(url, shown, rates, problem), refresh=True)
            time.sleep(every_s)


def page(url: str, now: ServiceStatus | None, rates: "Rates", problem: str) -> Stack:
    """Lays out a status, as old as it may be, and what is wrong."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    parts: list[Text | Table] = []
    if now is not None:
        head = heading(url, now)
        parts.append(Text.assemble((head.name, "bold"), ": ", (head.text, head.style)))
        for line in (*lines(now), *rates.lines()):
            table.add_row(line.name, Text(line.text, line.style))
        parts.append(table)
    if problem:
        parts.append(Text(f"{visible_line(url)}: {visible_line(problem, limit=500)}", "bold red"))
    return Stack(*parts)


class Rates:
    """Rollouts that ended per second, of late."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int, int]] = deque()
        """Time, rollouts ended and rollouts failed, of each look."""

    def add(self, at: float, now: ServiceStatus) -> None:
        ended, failed = sum(now.ended.values()), sum(now.failures.values())
        if self._looks and ended < self._looks[-1][1]:  # the service has started again
            self._looks.clear()
        self._looks.append((at, ended, failed))
        while at - self._looks[0][0] > RATE_S:
            self._looks.popleft()

    def lines(self) -> list[Line]:
        if len(self._looks) < 2:
            return []
        (start, ended, failed), (stop, ended_now, failed_now) = self._looks[0], self._looks[-1]
        rate, new = (ended_now - ended) / (stop - start), failed_now - failed
        text = f"{rate:.2f} rollouts/s in the last {stop - start:.0f} s, {new} failed"
        return [Line("rate", text, "red" if new else "")]
