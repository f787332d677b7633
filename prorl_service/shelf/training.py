"""A run by policy version, from the rows of its ended rollouts: for the view of training.

Each rollout counts for one version, its `policy_version`; a group counts for that of its newest.
"""

import sqlite3
from collections import defaultdict
from typing import Any

from prorl_service.schemas import Blame, FinishReason, RolloutState
from prorl_service.schemas.views import GroupOutcome, VersionRow
from prorl_service.shelf.tables import BLAMES, REASONS, STATES, STRIDE

_DONE, _FAILED, _CANCELLED = (
    STATES.index(one) for one in (RolloutState.DONE, RolloutState.FAILED, RolloutState.CANCELLED)
)

_ROLLOUTS = f"""
SELECT r.version, count(*), sum(r.state = {_DONE}), sum(r.state = {_FAILED}),
    sum(r.state = {_CANCELLED}), avg(r.reward),
    avg(CASE WHEN r.reward IS NOT NULL THEN r.reward >= 1 END),
    avg(CASE WHEN r.turns THEN r.turns END), avg(CASE WHEN r.turns THEN r.sampled END),
    sum(r.sampled), sum(CASE WHEN r.state <> {_DONE} THEN r.sampled ELSE 0 END),
    avg(r.staleness), max(r.staleness), min(r.ended_at), max(r.ended_at)
FROM groups g CROSS JOIN rollouts r
    ON r.id >= g.number * {STRIDE} AND r.id < (g.number + 1) * {STRIDE}
WHERE g.run = (SELECT number FROM names WHERE name = ?) AND {{agent}}
GROUP BY r.version ORDER BY r.version
"""
_KINDS = f"""
SELECT r.version, r.state, r.blame, r.reason, count(*)
FROM groups g CROSS JOIN rollouts r
    ON r.id >= g.number * {STRIDE} AND r.id < (g.number + 1) * {STRIDE}
WHERE g.run = (SELECT number FROM names WHERE name = ?) AND {{agent}}
    AND (r.blame IS NOT NULL OR r.reason IS NOT NULL)
GROUP BY r.version, r.blame, r.reason
"""
_OUTCOME = f"""
CASE WHEN g.rewards = 0 THEN '{GroupOutcome.UNSCORED}'
    WHEN g.least_reward < g.greatest_reward THEN '{GroupOutcome.INFORMATIVE}'
    WHEN g.least_reward = 0 THEN '{GroupOutcome.ALL_ZERO}'
    WHEN g.least_reward = 1 THEN '{GroupOutcome.ALL_ONE}'
    ELSE '{GroupOutcome.ALL_EQUAL}' END
"""
_GROUPS = f"""
SELECT g.greatest_version, {_OUTCOME} AS outcome, count(*)
FROM groups g
WHERE g.run = (SELECT number FROM names WHERE name = ?) AND {{agent}} AND g.ended >= g.n
GROUP BY g.greatest_version, outcome
"""


def versions(db: sqlite3.Connection, run: str, agent: str | None) -> list[VersionRow]:
    """The oldest first. `agent` None: of all."""
    condition = "1" if agent is None else "g.agent = (SELECT number FROM names WHERE name = ?)"
    values = (run,) if agent is None else (run, agent)

    def ask(query: str) -> list[Any]:
        return db.execute(query.format(agent=condition), values).fetchall()

    failures: dict[int, dict[Blame, int]] = defaultdict(dict)
    reasons: dict[int, dict[FinishReason, int]] = defaultdict(dict)
    for version, _, blame, reason, count in ask(_KINDS):
        if blame is not None:
            _add(failures[version], BLAMES[blame], count)
        if reason is not None:
            _add(reasons[version], REASONS[reason], count)
    outcomes: dict[int, dict[GroupOutcome, int]] = defaultdict(dict)
    for version, outcome, count in ask(_GROUPS):
        outcomes[version][GroupOutcome(outcome)] = count
    return [
        _row(one, failures[one[0]], reasons[one[0]], outcomes[one[0]]) for one in ask(_ROLLOUTS)
    ]


def _add(counts: dict[Any, int], key: object, count: int) -> None:
    counts[key] = counts.get(key, 0) + count


def _row(
    values: tuple[Any, ...],
    failures: dict[Blame, int],
    reasons: dict[FinishReason, int],
    outcomes: dict[GroupOutcome, int],
) -> VersionRow:
    names = (
        *("policy_version", "rollouts", "done", "failed", "cancelled", "mean_reward"),
        *("success_rate", "mean_turns", "mean_sampled_tokens", "sampled_tokens", "wasted_tokens"),
        *("mean_staleness", "max_staleness", "first_ended_at", "last_ended_at"),
    )
    groups = sum(outcomes.values())
    scored = groups - outcomes.get(GroupOutcome.UNSCORED, 0)
    return VersionRow(
        **dict(zip(names, values, strict=True)),
        failures=failures,
        finish_reasons=reasons,
        groups=groups,
        outcomes=outcomes,
        informative_share=outcomes.get(GroupOutcome.INFORMATIVE, 0) / scored if scored else None,
    )
