"""`prorl logs`: what happens at a service, an event a line."""

import sys
import time
from contextlib import suppress
from typing import Annotated

from cyclopts import Parameter

from prorl_service.cli.screen import Screen
from prorl_service.cli.service import DEFAULT_URL, Url, connected
from prorl_service.cli.wording import number
from prorl_service.client import RolloutClient
from prorl_service.schemas.views import Event, RolloutRow, RowFilter
from prorl_service.utils.visible import visible_line

RECENT = 20
STYLES = {"failed": "bold red", "done": "green", "cancelled": "yellow"}


def logs(
    *,
    follow: Annotated[bool, Parameter(["--follow", "-f"])] = False,
    url: Url = DEFAULT_URL,
    as_json: Annotated[bool, Parameter("--json")] = False,
) -> None:
    """Print the rollouts that ended last, and what happens from then on.

    Parameters
    ----------
    follow
        Go on until Ctrl-C, over lost connections.
    as_json
        Print an object a line, for programs.
    """
    screen = Screen(sys.stdout)
    with connected(url) as client, suppress(KeyboardInterrupt):
        _print_recent(screen, client, as_json=as_json)
        if follow:
            for event in client.events():
                _print_event(screen, event, as_json=as_json)


def _print_recent(screen: Screen, client: RolloutClient, *, as_json: bool) -> None:
    pages = client.rollout_pages(RowFilter(), 4 * RECENT)
    ended = [row for page in pages for row in page.rollouts if row.ended_at is not None]
    ended.sort(key=lambda row: row.ended_at or 0.0)
    for row in ended[-RECENT:]:
        _print_row(screen, row, as_json=as_json)


def _print_row(screen: Screen, row: RolloutRow, *, as_json: bool) -> None:
    if as_json:
        screen.line(row.model_dump_json())
        return
    said = [row.state.value]
    if row.error is not None:
        said.append(f"blame {row.error.blame.value}")
        said.append(visible_line(row.error.message, limit=120))
    if row.reward is not None:
        said.append(f"reward {number(row.reward)}")
    text = f"{_clock(row.ended_at)} rollout {visible_line(row.rollout_id)} {', '.join(said)}"
    screen.line(text, STYLES.get(row.state.value, ""))


def _print_event(screen: Screen, event: Event, *, as_json: bool) -> None:
    if as_json:
        screen.line(event.model_dump_json())
        return
    data = dict(event.data)
    at = data.pop("at", None)
    style = STYLES.get(str(data.get("state")), "")
    screen.line(f"{_clock(at)} {event.event} {described(event)}", style)


def described(event: Event) -> str:
    """Returns what an event says, on one line."""
    parts = []
    for name, value in event.data.items():
        if name == "at" or value is None:
            continue
        is_name = name in ("rollout_id", "group_id", "backend_id", "state")
        text = visible_line(f"{value:.4g}" if isinstance(value, float) else str(value))
        parts.append(text if is_name else f"{name} {text}")
    return ", ".join(parts)


def _clock(at: object) -> str:
    moment = at if isinstance(at, (int, float)) else time.time()
    return time.strftime("%H:%M:%S", time.localtime(moment))
