"""`prorl list`, `prorl tasks` and `prorl logs`: rollouts, groups or tasks of a service in a table,
or an event a line.

What models, tools and tasks wrote is made visible, on one line each.
"""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

from cyclopts import Parameter, default_name_transform
from pydantic import PositiveInt
from rich.table import Table
from rich.text import Text

from prorl_service.cli.program import JsonLines
from prorl_service.cli.screen import Screen
from prorl_service.cli.service import DEFAULT_URL, Url, connected
from prorl_service.cli.wording import STYLES, ago, counts, number, percent, plural, waits_for
from prorl_service.client import RolloutClient
from prorl_service.schemas import RolloutState, WireModel
from prorl_service.schemas.text_search import Excerpt
from prorl_service.schemas.views import (
    Event,
    GroupOutcome,
    GroupQuery,
    GroupRow,
    GroupRows,
    RolloutRow,
    RolloutRows,
    RowFilter,
    TaskQuery,
    TaskRow,
)
from prorl_service.utils.visible import visible_line

MOST = 50
"""Rows that are listed unless more are asked for."""
MESSAGE_CHARS = 60
FOUND_CHARS = 30
"""Characters around a text that was found."""
EMPTY = (
    "nothing was submitted yet. To begin: `prorl init DIRECTORY` (a project that trains), "
    "`prorl try AGENT` (a rollout without a service), `prorl open` (the page)"
)
RECENT = 20
"""Rollouts that `logs` begins with."""

Many = Parameter(consume_multiple=False)
Conditions = Parameter(
    name="*",
    name_transform=lambda name: default_name_transform(name.removesuffix("_id")),
    consume_multiple=False,
)


def list_rollouts(
    *,
    groups: bool = False,
    wanted: Annotated[RowFilter, Conditions] = RowFilter(),
    outcome: Annotated[list[GroupOutcome] | None, Many] = None,
    limit: PositiveInt = MOST,
    url: Url = DEFAULT_URL,
    as_json: JsonLines = False,
) -> None:
    """List rollouts or groups of a service, the newest first, and why some failed.

    Parameters
    ----------
    groups
        List groups.
    outcome
        Only groups with this outcome; implies --groups.
    limit
        Most rows to list.
    """
    screen = Screen(sys.stdout)
    has_conditions = bool(outcome) or wanted != RowFilter()
    with connected(url) as client:
        if groups or outcome:
            query = GroupQuery(**dict(wanted), outcome=outcome or [])
            group_lists = list(client.group_pages(query, limit))
            found = [row for page in group_lists for row in page.groups]
            if not _print_json(screen, found, as_json=as_json):
                screen.table(_group_table(found))
                _say_more(screen, "groups", len(found), group_lists, has_conditions)
            return
        pages = list(client.rollout_pages(wanted, limit))
        rows = [row for page in pages for row in page.rollouts]
        if not _print_json(screen, rows, as_json=as_json):
            show_rollouts(screen, rows)
            _say_more(screen, "rollouts", len(rows), pages, has_conditions)


def tasks(
    *,
    wanted: Annotated[TaskQuery, Conditions] = TaskQuery(),
    url: Url = DEFAULT_URL,
    as_json: JsonLines = False,
) -> None:
    """List the tasks of a run with their ended rollouts, the least successful first."""
    screen = Screen(sys.stdout)
    with connected(url) as client:
        found = client.tasks(wanted)
    if _print_json(screen, found.tasks, as_json=as_json):
        return
    screen.table(_task_table(found.tasks))
    if len(found.tasks) < found.matches:
        screen.line(f"{len(found.tasks)} of {found.matches} tasks (--limit, --sort)", "dim")
    elif not found.tasks:
        screen.line("no rollout of such a task has ended", "dim")
    if found.notice:
        screen.line(found.notice, "yellow")


def _print_json(screen: Screen, rows: Sequence[WireModel], *, as_json: bool) -> bool:
    if as_json:
        for row in rows:
            screen.line(row.model_dump_json())
    return as_json


def _say_more(
    screen: Screen,
    what: str,
    count: int,
    pages: Sequence[GroupRows | RolloutRows],
    has_conditions: bool,
) -> None:
    if count == 0:
        screen.line(f"no {what} meet these conditions" if has_conditions else EMPTY, "dim")
    if pages[-1].next is not None:
        screen.line(f"{count} {what}; there are more (--limit)", "dim")
    for notice in {page.notice for page in pages} - {""}:
        screen.line(notice, "yellow")


# --- tables -------------------------------------------------------------------------------------


def show_rollouts(screen: Screen, rows: Sequence[RolloutRow]) -> None:
    """Prints a table of rollouts, and what failed, the most frequent failure first."""
    screen.table(_rollout_table(rows))
    alike = Counter(
        (error.blame.value, error.kind, error.message, error.hint)
        for row in rows
        if row.state is RolloutState.FAILED and (error := row.error) is not None
    )
    for (blame, kind, message, hint), count in alike.most_common():
        said = f"{visible_line(kind)}: {visible_line(message, limit=300)}"
        screen.line(f"{plural(count, 'rollout')} failed, blame {blame}: {said}", "red")
        if hint:
            screen.note(f"to do: {visible_line(hint, limit=300)}")


def _rollout_table(rows: Sequence[RolloutRow]) -> Table:
    by = ["by"] if len({row.client for row in rows}) > 1 else []
    table = table_of(
        "rollout", "task", "state", "*reward", "*turns", "*version", "*ended", *by, "problem"
    )
    for row in rows:
        table.add_row(
            visible_line(row.rollout_id),
            visible_line(row.task_id, limit=30),
            Text(row.state.value, STYLES.get(row.state.value, "")),
            number(row.reward),
            _count(row.turns),
            _count(row.policy_version),
            ago(row.ended_at),
            *(visible_line(row.client or "", limit=30) for _ in by),
            _found(row.excerpt) if row.excerpt else _problem(row),
        )
    return table


def _group_table(rows: Sequence[GroupRow]) -> Table:
    table = table_of("group", "task", "rewards", "*mean", "outcome", "failed", "*version", "*ended")
    for row in rows:
        table.add_row(
            visible_line(row.group_id),
            visible_line(row.task_id, limit=30),
            " ".join(_reward(row, index) for index in range(row.n)),
            number(row.mean_reward),
            row.outcome.value.replace("_", " "),
            counts({blame.value: n for blame, n in row.blames.items()}).replace("none", ""),
            ", ".join(map(str, row.policy_versions)),
            ago(row.ended_at),
        )
    return table


def _task_table(rows: Sequence[TaskRow]) -> Table:
    names = ("task", "agent", "*rollouts", "*failed", "*success", "*reward", "*informative")
    table = table_of(*names, "trend", "*ended")
    for row in rows:
        table.add_row(
            visible_line(row.task_id, limit=40),
            visible_line(row.agent, limit=20),
            str(row.rollouts),
            str(row.failed),
            percent(row.success_rate),
            number(row.mean_reward),
            percent(row.informative_share),
            _trend(row),
            ago(row.last_ended_at),
        )
    return table


def _trend(row: TaskRow) -> str:
    """Returns the mean rewards of the first and the last groups."""
    if len(row.trend) < 2:
        return ""
    return " to ".join(number(row.trend[place].mean_reward) for place in (0, -1))


def table_of(*names: str) -> Table:
    """Makes a table; columns whose names begin with a star hold numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in names:
        is_number = name.startswith("*")
        table.add_column(
            name.removeprefix("*"), justify="right" if is_number else "left", no_wrap=True
        )
    return table


def _found(excerpt: Excerpt) -> Text:
    """Returns the place of a text, and the text marked."""
    before, after = excerpt.before[-FOUND_CHARS:], excerpt.after[:FOUND_CHARS]
    said = (visible_line(one, limit=MESSAGE_CHARS) for one in (before, excerpt.match, after))
    start, match, stop = said
    return Text.assemble(f"{visible_line(excerpt.place)}: ", start, (match, "bold reverse"), stop)


def _problem(row: RolloutRow) -> str:
    if row.activity is not None:
        return waits_for(row.activity)
    if row.error is not None:
        blame = f"{row.error.blame.value}: " if row.state is RolloutState.FAILED else ""
        return blame + visible_line(row.error.message, limit=MESSAGE_CHARS)
    is_odd = row.finish_reason is not None and row.finish_reason.value != "finished"
    return row.finish_reason.value if is_odd and row.finish_reason else ""


def _reward(row: GroupRow, index: int) -> str:
    state, reward = row.states[index], row.rewards[index]
    if reward is not None:
        return number(reward)
    return {"failed": "x", "cancelled": "-", None: "?"}.get(state and state.value, ".")


def _count(value: int | None) -> str:
    return "" if value is None else str(value)


# --- events -------------------------------------------------------------------------------------


def logs(
    *,
    follow: Annotated[bool, Parameter(["--follow", "-f"])] = False,
    url: Url = DEFAULT_URL,
    as_json: JsonLines = False,
) -> None:
    """Print the rollouts that ended last, and what happens from then on.

    Parameters
    ----------
    follow
        Go on until Ctrl-C, over lost connections.
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
