"""A run by task, for the view of tasks: sums over the ended rollouts that the shelf lists.

Plain functions on the reader's connection. SQLite adds up, sorts and cuts: rows are made only of
what is shown.
"""

import sqlite3

import orjson

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

# Group by group, so that neither sums nor trends sort all rollouts.
_OF_GROUPS = f"""WITH of_groups AS (
    SELECT g.task_id, g.agent, g.outcome, max(r.policy_version) AS version,
        count(*) AS rollouts, sum(r.state = '{RolloutState.FAILED}') AS failed,
        count(r.reward) AS rewards, total(r.reward) AS reward, total(r.reward >= 1) AS successes,
        max(r.ended_at) AS ended_at
    FROM groups g CROSS JOIN rollouts r ON {queries.INSIDE}
    WHERE {{where}} GROUP BY g.number)"""
_FIGURES = f"""task_id, agent, count(*) AS groups, sum(rollouts) AS rollouts, sum(failed) AS failed,
    sum(reward) / nullif(sum(rewards), 0) AS mean_reward,
    sum(successes) / nullif(sum(rewards), 0) AS success_rate,
    total(outcome = '{GroupOutcome.INFORMATIVE}')
        / nullif(sum(outcome NOT IN ('{GroupOutcome.OPEN}', '{GroupOutcome.UNSCORED}')), 0)
        AS informative_share,
    max(ended_at) AS last_ended_at"""
_ORDERS = {
    TaskSort.WORST: "success_rate NULLS FIRST",
    TaskSort.BEST: "success_rate DESC NULLS LAST",
    TaskSort.MOST_FAILED: "failed DESC",
    TaskSort.LEAST_INFORMATIVE: "informative_share NULLS FIRST",
}


def tasks(db: sqlite3.Connection, run: str, query: TaskQuery) -> tuple[list[TaskRow], int]:
    """Returns the first rows in the query's order, and how many there are."""
    agents = [] if query.agent is None else [query.agent]
    where = queries.of_groups(RowFilter(run=run, agent=agents, task_id=query.task_id))
    cursor = db.execute(
        f"{_OF_GROUPS.format(where=where)} SELECT {_FIGURES}, count(*) OVER () FROM of_groups"
        f" GROUP BY task_id, agent ORDER BY {_ORDERS[query.sort]}, task_id, agent LIMIT ?",
        (*where.values, query.limit),
    )
    names = [name for name, *_ in cursor.description[:-1]]
    found = cursor.fetchall()
    trends = _trends(db, where, [(task_id, agent) for task_id, agent, *_ in found])
    rows = [
        TaskRow(**dict(zip(names, figures, strict=True)), trend=trends.get(tuple(figures[:2]), []))
        for *figures, _ in found
    ]
    return rows, found[0][-1] if found else 0


def _trends(
    db: sqlite3.Connection, where: queries.Where, tasks: list[tuple[str, str]]
) -> dict[tuple[str, ...], list[TrendPoint]]:
    """Returns mean rewards of the newest versions by task and agent, oldest first."""
    shown = (
        "(g.task_id, g.agent) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]')"
        " FROM json_each(?))"
    )
    trends: dict[tuple[str, ...], list[TrendPoint]] = {}
    for task_id, agent, version, mean in db.execute(
        f"{_OF_GROUPS.format(where=f'{where} AND {shown}')}"
        " SELECT task_id, agent, version, avg(reward / rewards) FROM of_groups WHERE rewards > 0"
        " GROUP BY task_id, agent, version ORDER BY version",
        (*where.values, orjson.dumps(tasks).decode()),
    ):
        point = TrendPoint(policy_version=version, mean_reward=mean)
        trends.setdefault((task_id, agent), []).append(point)
    return {task: points[-SHOWN_VERSIONS:] for task, points in trends.items()}
