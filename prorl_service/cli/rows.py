"""Tables of rollouts and groups, and failures summed up. Pure.

What models, tools and tasks wrote is made visible, on one line each.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from prorl_service.cli.wording import counts, duration, number, plural
from prorl_service.schemas import RolloutState
from prorl_service.schemas.views import GroupRow, RolloutRow
from prorl_service.utils.visible import visible_line

STYLES = {"done": "green", "failed": "bold red", "cancelled": "yellow"}
MESSAGE_CHARS = 60


def rollout_table(rows: Sequence[RolloutRow], now: float | None = None) -> Table:
    table = _table("rollout", "task", "state", "*reward", "*turns", "*version", "*ended", "problem")
    for row in rows:
        table.add_row(
            visible_line(row.rollout_id),
            visible_line(row.task_id, limit=30),
            Text(row.state.value, STYLES.get(row.state.value, "")),
            number(row.reward),
            _count(row.turns),
            _count(row.policy_version),
            _ago(row.ended_at, now),
            _problem(row),
        )
    return table


def group_table(rows: Sequence[GroupRow], now: float | None = None) -> Table:
    table = _table("group", "task", "rewards", "*mean", "outcome", "failed", "*version", "*ended")
    for row in rows:
        table.add_row(
            visible_line(row.group_id),
            visible_line(row.task_id, limit=30),
            " ".join(_reward(row, index) for index in range(row.n)),
            number(row.mean_reward),
            row.outcome.value.replace("_", " "),
            counts({blame.value: n for blame, n in row.blames.items()}).replace("none", ""),
            ", ".join(map(str, row.policy_versions)),
            _ago(row.ended_at, now),
        )
    return table


def failures(rows: Sequence[RolloutRow]) -> Iterator[tuple[str, str]]:
    """Yields what failed and what to do about it, the most frequent failure first."""
    alike: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for row in rows:
        if row.state is RolloutState.FAILED and row.error is not None:
            error = row.error
            alike[error.blame.value, error.kind, error.message, error.hint] += 1
    for (blame, kind, message, hint), count in sorted(alike.items(), key=lambda one: -one[1]):
        said = visible_line(message, limit=300)
        what = f"{plural(count, 'rollout')} failed, blame {blame}: {visible_line(kind)}: {said}"
        yield what, visible_line(hint, limit=300)


def _table(*names: str) -> Table:
    """Makes a table; columns whose names begin with a star hold numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in names:
        is_number = name.startswith("*")
        table.add_column(
            name.removeprefix("*"), justify="right" if is_number else "left", no_wrap=True
        )
    return table


def _problem(row: RolloutRow) -> str:
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


def _ago(at: float | None, now: float | None) -> str:
    if at is None:
        return ""
    return f"{duration((time.time() if now is None else now) - at)} ago"
