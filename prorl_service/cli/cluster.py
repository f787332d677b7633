"""A run on a Ray cluster as a table for a terminal."""

import sys
import time

from rich.table import Table
from rich.text import Text

from prorl_service.cli.figures import BAD, GOOD
from prorl_service.cli.screen import Screen
from prorl_service.cli.wording import duration, plural
from prorl_service.ray.plan import NodeStatus, Report, RunStatus, State
from prorl_service.utils.visible import visible_line

STYLES = {
    State.SERVING: GOOD,
    State.WAITING: "yellow",
    State.STARTING: "yellow",
    State.STOPPING: "yellow",
    State.RESTARTING: BAD,
    State.UNREACHABLE: BAD,
}
PROBLEM_CHARS = 200


def show(run: RunStatus) -> None:
    """Prints the run: a heading, its front, and a row for each service."""
    screen = Screen(sys.stdout)
    stopping = ", stopping" if run.is_stopping else ""
    screen.line(f"run {visible_line(run.run)}: {heading(run)}{stopping}", "bold")
    screen.table(table(run))


def heading(run: RunStatus) -> str:
    serving = sum(one.report.state is State.SERVING for one in run.nodes)
    wanted = "" if run.wanted is None else f", {run.wanted} wanted"
    others = f", {plural(run.others, 'node')} without one" if run.others else ""
    return (
        f"{serving} of {plural(len(run.nodes), 'service')} answering{wanted}{others}; "
        f"{run.running} rollouts running, {run.queued} queued"
    )


def table(run: RunStatus) -> Table:
    found = Table(
        "", "state", "for", "rollouts", "restarts", "address", "node", "problem", box=None
    )
    found.add_row("front", *_process(run.front, "", ""))
    for one in run.nodes:
        found.add_row(visible_line(one.name), *_process(one.report, _busy(one), one.node_id[-8:]))
    return found


def _process(report: Report, busy: str, node: str) -> list[Text | str]:
    return [
        Text(report.state.value, STYLES.get(report.state, "")),
        duration(time.time() - report.since),
        busy,
        str(report.restarts) if report.restarts else "",
        visible_line(report.url),
        node,
        visible_line(report.problem, limit=PROBLEM_CHARS),
    ]


def _busy(one: NodeStatus) -> str:
    if not one.slots:
        return ""
    closed = "" if one.takes_rollouts else ", closed"
    return f"{one.load} of {one.slots}{closed}"
