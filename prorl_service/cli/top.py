"""`prorl top`: what a service does now, in a terminal, with a few keys."""

import os
import re
import select
import sys
import termios
import time
import tty
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Self

from pydantic import PositiveFloat
from rich.live import Live

from prorl_service.cli.conversation import show_rollout
from prorl_service.cli.screen import Screen
from prorl_service.cli.service import DEFAULT_URL, Url, connected
from prorl_service.cli.status import status
from prorl_service.cli.top_view import TopView
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.schemas import RolloutState
from prorl_service.schemas.views import RolloutQuery
from prorl_service.utils.visible import visible_line

MOST_ROWS = 100
WORKING = [RolloutState.INIT, RolloutState.READY, RolloutState.RUNNING, RolloutState.EVALUATING]
NAMES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down"} | dict.fromkeys(
    ("\r", "\n"), "enter"
)
"""Names of keys that send more than their letter."""
_KEY = re.compile(r"\x1b[\[O][0-9;]*.|.", re.DOTALL)


def top(*, url: Url = DEFAULT_URL, every_s: PositiveFloat = 2.0) -> None:
    """Watch what a service is doing: rates, engines, failures, the oldest rollouts.

    Without a terminal it is `prorl status`.

    Parameters
    ----------
    every_s
        Seconds between two looks.
    """
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        status(url=url)
        return
    with connected(url, retry_s=0.0) as client, Keys() as keys, suppress(KeyboardInterrupt):
        _watch(client, TopView(url), keys, every_s)


class Keys:
    """The keys of a terminal, one by one."""

    def __init__(self) -> None:
        self._terminal = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._terminal)
        self._typed = deque[str]()

    def __enter__(self) -> Self:
        tty.setcbreak(self._terminal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float | None) -> str:
        """Returns the next key; an empty text if none is pressed in time, `q` if the terminal is
        gone."""
        if not self._typed:
            if not select.select([self._terminal], [], [], seconds)[0]:
                return ""
            typed = os.read(self._terminal, 1024).decode(errors="replace") or "q"
            self._typed.extend(_KEY.findall(typed))
        key = self._typed.popleft()
        return NAMES.get(key, key)


def _watch(client: RolloutClient, view: TopView, keys: Keys, every_s: float) -> None:
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            _look(client, view, every_s)
            until = time.monotonic() + every_s
            while (left := until - time.monotonic()) > 0:
                live.update(view.page(live.console.height), refresh=True)
                key = keys.wait(left)
                if key == "q":
                    return
                if key == "enter" and view.chosen is not None:
                    live.stop()
                    _show(client, view.chosen.rollout_id, keys)
                    live.start()
                else:
                    view.press(key)
                if key == "s":
                    break


def _look(client: RolloutClient, view: TopView, every_s: float) -> None:
    working = RolloutQuery(state=WORKING, sort=view.sort, limit=MOST_ROWS)
    failed = RolloutQuery(state=[RolloutState.FAILED], limit=MOST_ROWS)
    try:
        view.status = client.status()
        view.rates.add(time.monotonic(), view.status)
        view.running = client.rollouts(working).rollouts
        view.failed = client.rollouts(failed).rollouts
        view.problem = ""
    except ServiceCallError as error:
        said = visible_line(error.message.splitlines()[0], limit=500)
        view.problem = f"{said}; asked again every {every_s:g} s"


def _show(client: RolloutClient, rollout_id: str, keys: Keys) -> None:
    screen = Screen(sys.stdout)
    try:
        show_rollout(screen, client.text(rollout_id))
    except ServiceCallError as error:
        screen.line(visible_line(error.message, limit=500), "red")
    screen.line("press a key to go back", "dim")
    keys.wait(None)
