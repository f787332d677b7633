"""`prorl compare`: a run next to another, by policy version, and the tasks that changed most."""

import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from prorl_service.cli.lists import table_of
from prorl_service.cli.screen import Screen
from prorl_service.cli.service import DEFAULT_URL, Url, connected
from prorl_service.cli.wording import listed, number, percent
from prorl_service.client import RolloutClient
from prorl_service.errors import ProRLError
from prorl_service.schemas.training import VersionRow
from prorl_service.schemas.views import MAX_ROWS, TaskQuery, TaskRow
from prorl_service.utils.visible import visible_line

MOST_VERSIONS, MOST_TASKS = 20, 20


def compare(
    other: Annotated[str, Parameter(help="The run to compare with.")],
    /,
    *,
    run: str | None = None,
    agent: str | None = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Compare a run with another: rewards by policy version, and the tasks that changed most.

    The other run is one of the service's shelf, or of another shelf in the same directory.

    Parameters
    ----------
    run
        The run that is compared (default: the service's own).
    agent
        Only rollouts of this agent.
    """
    screen = Screen(sys.stdout)
    with connected(url) as client:
        known = client.runs()
        for name in filter(None, (run, other)):
            if name not in known:
                runs = listed(map(visible_line, known))
                raise ProRLError(f"there is no run {name!r} here", hint=f"runs: {runs}")
        ours, theirs = (client.training(run=one, agent=agent) for one in (run, other))
        names = (visible_line(ours.run), visible_line(theirs.run))
        _show_versions(screen, names, ours.versions, theirs.versions)
        _show_tasks(screen, names, *(_tasks(client, one, agent) for one in (run, other)))


def _tasks(client: RolloutClient, run: str | None, agent: str | None) -> dict[str, TaskRow]:
    found = client.tasks(TaskQuery(run=run, agent=agent, limit=MAX_ROWS)).tasks
    return {task.task_id: task for task in found}


def _show_versions(
    screen: Screen,
    names: tuple[str, str],
    ours: Sequence[VersionRow],
    theirs: Sequence[VersionRow],
) -> None:
    sides = [{row.policy_version: row for row in rows} for rows in (ours, theirs)]
    figures = ("rollouts", "success", "reward")
    table = table_of("*version", *(f"*{figure}, {name}" for figure in figures for name in names))
    of_both = sides[0].keys() & sides[1].keys()
    for version in sorted(of_both or sides[0].keys() | sides[1].keys())[-MOST_VERSIONS:]:
        rows = [side.get(version) for side in sides]
        table.add_row(
            str(version),
            *("" if row is None else str(row.rollouts) for row in rows),
            *("" if row is None else percent(row.success_rate) for row in rows),
            *("" if row is None else number(row.mean_reward) for row in rows),
        )
    screen.table(table)


def _show_tasks(
    screen: Screen, names: tuple[str, str], ours: dict[str, TaskRow], theirs: dict[str, TaskRow]
) -> None:
    changes = {
        task: round(100 * (new - old))
        for task, row in ours.items()
        if (new := row.success_rate) is not None
        and task in theirs
        and (old := theirs[task].success_rate) is not None
    }
    changed = sorted(
        (task for task in changes if changes[task]), key=lambda one: -abs(changes[one])
    )
    if not changes:
        screen.line("the runs have no task with rewards in common", "bold")
        return
    screen.line(f"{len(changed)} of {len(changes)} tasks of both runs changed", "bold")
    table = table_of("task", *(f"*success, {name}" for name in names), "*change, points")
    for task in changed[:MOST_TASKS]:
        rates = (percent(side[task].success_rate) for side in (ours, theirs))
        style = "green" if changes[task] > 0 else "red"
        change = Text(f"{changes[task]:+d}", style)
        table.add_row(visible_line(task, limit=60), *rates, change)
    if changed:
        screen.table(table)
