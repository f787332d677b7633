"""A run by task, for the view of tasks: sums over the ended rollouts that the shelf lists.

Plain functions on the reader's connection.
"""

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prorl_service.schemas import RolloutState
from prorl_service.schemas.views import (
    GroupOutcome,
    RowFilter,
    TaskQuery,
    TaskRow,
    TaskSort,
    TrendPoint,
)
from prorl_service.shelf import queries

SHOWN_VERSIONS = 24
"""Most points of a trend."""


@dataclass(slots=True)
class _TaskSums:
    """Sums of one task."""

    rollouts: int = 0
    failed: int = 0
    rewards: int = 0
    reward_sum: float = 0.0
    successes: int = 0
    last_ended_at: float = 0.0
    groups: int = 0
    scored: int = 0
    informative: int = 0
    trend: dict[int, float] = field(default_factory=dict)

    def add(self, version: int, reward_sum: float | None, *sums: float) -> None:
        rollouts, failed, rewards, successes, last_ended_at = sums
        self.rollouts += int(rollouts)
        self.failed += int(failed)
        self.rewards += int(rewards)
        self.successes += int(successes)
        self.last_ended_at = max(self.last_ended_at, last_ended_at)
        if reward_sum is not None:
            self.reward_sum += reward_sum
            self.trend[version] = reward_sum / rewards

    def to_wire(self, task_id: str, agent: str) -> TaskRow:
        newest = sorted(self.trend.items())[-SHOWN_VERSIONS:]
        return TaskRow(
            task_id=task_id,
            agent=agent,
            groups=self.groups,
            rollouts=self.rollouts,
            failed=self.failed,
            mean_reward=_share(self.reward_sum, self.rewards),
            success_rate=_share(self.successes, self.rewards),
            informative_share=_share(self.informative, self.scored),
            trend=[TrendPoint(policy_version=at, mean_reward=mean) for at, mean in newest],
            last_ended_at=self.last_ended_at,
        )


def tasks(db: sqlite3.Connection, run: str, query: TaskQuery) -> tuple[list[TaskRow], int]:
    """Returns the first rows in the query's order, and how many there are."""
    agents = [] if query.agent is None else [query.agent]
    where = queries.of_groups(RowFilter(run=run, agent=agents, task_id=query.task_id))
    found: dict[tuple[str, str], _TaskSums] = {}
    for task_id, agent, *sums in db.execute(
        "SELECT g.task_id, g.agent, r.policy_version, sum(r.reward), count(*),"
        f" sum(r.state = '{RolloutState.FAILED}'), count(r.reward), total(r.reward >= 1),"
        f" max(r.ended_at) FROM groups g CROSS JOIN rollouts r ON {queries.INSIDE} WHERE {where}"
        " GROUP BY g.task_id, g.agent, r.policy_version",
        where.values,
    ):
        found.setdefault((task_id, agent), _TaskSums()).add(*sums)
    for task_id, agent, groups, scored, informative in db.execute(
        "SELECT g.task_id, g.agent, count(*),"
        f" sum(g.outcome NOT IN ('{GroupOutcome.OPEN}', '{GroupOutcome.UNSCORED}')),"
        f" sum(g.outcome = '{GroupOutcome.INFORMATIVE}')"
        f" FROM groups g WHERE {where} GROUP BY g.task_id, g.agent",
        where.values,
    ):
        if (task := found.get((task_id, agent))) is not None:
            task.groups, task.scored, task.informative = groups, scored, informative
    rows = _sorted((task.to_wire(*name) for name, task in found.items()), query.sort)
    return rows[: query.limit], len(rows)


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def _or_none(value: float | None) -> float:
    return -1.0 if value is None else value


_FIGURES: dict[TaskSort, Callable[[TaskRow], float]] = {
    TaskSort.WORST: lambda row: _or_none(row.success_rate),
    TaskSort.BEST: lambda row: -_or_none(row.success_rate),
    TaskSort.MOST_FAILED: lambda row: -row.failed,
    TaskSort.LEAST_INFORMATIVE: lambda row: _or_none(row.informative_share),
}


def _sorted(rows: Iterable[TaskRow], sort: TaskSort) -> list[TaskRow]:
    return sorted(rows, key=lambda row: (_FIGURES[sort](row), row.task_id, row.agent))
