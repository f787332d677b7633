"""A run by task, for the view of tasks: sums over the ended rollouts that the shelf lists.

Plain functions on the reader's connection.
"""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

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
_UNSCORED = (GroupOutcome.OPEN, GroupOutcome.UNSCORED)


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
    trend: dict[int, list[float]] = field(default_factory=dict)
    """Mean rewards of its groups by the newest policy version in the group."""

    def add(self, outcome: str, version: int, reward_sum: float | None, *sums: float) -> None:
        """Adds a group."""
        rollouts, failed, rewards, successes, last_ended_at = sums
        self.rollouts += int(rollouts)
        self.failed += int(failed)
        self.successes += int(successes)
        self.last_ended_at = max(self.last_ended_at, last_ended_at)
        self.groups += 1
        self.scored += outcome not in _UNSCORED
        self.informative += outcome == GroupOutcome.INFORMATIVE
        if reward_sum is not None:
            self.rewards += int(rewards)
            self.reward_sum += reward_sum
            self.trend.setdefault(version, []).append(reward_sum / rewards)

    @property
    def success_rate(self) -> float | None:
        return _share(self.successes, self.rewards)

    @property
    def informative_share(self) -> float | None:
        return _share(self.informative, self.scored)

    def to_wire(self, task_id: str, agent: str) -> TaskRow:
        newest = sorted(self.trend.items())[-SHOWN_VERSIONS:]
        return TaskRow(
            task_id=task_id,
            agent=agent,
            groups=self.groups,
            rollouts=self.rollouts,
            failed=self.failed,
            mean_reward=_share(self.reward_sum, self.rewards),
            success_rate=self.success_rate,
            informative_share=self.informative_share,
            trend=[TrendPoint(policy_version=at, mean_reward=fmean(of)) for at, of in newest],
            last_ended_at=self.last_ended_at,
        )


def tasks(db: sqlite3.Connection, run: str, query: TaskQuery) -> tuple[list[TaskRow], int]:
    """Returns the first rows in the query's order, and how many there are."""
    agents = [] if query.agent is None else [query.agent]
    where = queries.of_groups(RowFilter(run=run, agent=agents, task_id=query.task_id))
    found: dict[tuple[str, str], _TaskSums] = {}
    for task_id, agent, *sums in db.execute(
        "SELECT g.task_id, g.agent, g.outcome, max(r.policy_version), sum(r.reward), count(*),"
        f" sum(r.state = '{RolloutState.FAILED}'), count(r.reward), total(r.reward >= 1),"
        f" max(r.ended_at) FROM groups g CROSS JOIN rollouts r ON {queries.INSIDE} WHERE {where}"
        " GROUP BY g.number",
        where.values,
    ):
        found.setdefault((task_id, agent), _TaskSums()).add(*sums)
    figure = _FIGURES[query.sort]
    names = sorted(found, key=lambda name: (figure(found[name]), name))
    return [found[name].to_wire(*name) for name in names[: query.limit]], len(names)


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def _or_none(value: float | None) -> float:
    return -1.0 if value is None else value


_FIGURES: dict[TaskSort, Callable[[_TaskSums], float]] = {
    TaskSort.WORST: lambda task: _or_none(task.success_rate),
    TaskSort.BEST: lambda task: -_or_none(task.success_rate),
    TaskSort.MOST_FAILED: lambda task: -task.failed,
    TaskSort.LEAST_INFORMATIVE: lambda task: _or_none(task.informative_share),
}
