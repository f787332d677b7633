"""A run by policy version, for the view of training: sums of the shelf's counts.

Each rollout counts for one version, its `policy_version`; a whole group counts for that of its
newest rollout. Both are counted when they end, and stay counted when their rows are evicted.
"""

import sqlite3
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from prorl_service.schemas import Blame, FinishReason, RolloutState
from prorl_service.schemas.numbers import is_score
from prorl_service.schemas.views import GroupOutcome, VersionRow
from prorl_service.shelf.tables import BLAMES, REASONS, STATES

_TALLIES = """
SELECT version, state, blame, reason, sum(rollouts), sum(rewards),
    coalesce(sum(reward_sum), 9e999), sum(successes),
    sum(played), sum(turns), sum(sampled), sum(stale), sum(staleness), max(most_stale),
    min(first_end), max(last_end)
FROM tallies
WHERE run = (SELECT number FROM names WHERE name = :run)
    AND (:agent IS NULL OR agent = (SELECT number FROM names WHERE name = :agent))
GROUP BY version, state, blame, reason
"""
_OUTCOMES = """
SELECT version, outcome, sum(groups) FROM outcomes
WHERE run = (SELECT number FROM names WHERE name = :run)
    AND (:agent IS NULL OR agent = (SELECT number FROM names WHERE name = :agent))
GROUP BY version, outcome
"""


@dataclass(slots=True)
class Sums:
    """All counts of one version."""

    states: Counter[RolloutState] = field(default_factory=Counter)
    failures: Counter[Blame] = field(default_factory=Counter)
    reasons: Counter[FinishReason] = field(default_factory=Counter)
    outcomes: Counter[GroupOutcome] = field(default_factory=Counter)
    rewards: int = 0
    reward_sum: float = 0.0
    successes: int = 0
    played: int = 0
    turns: int = 0
    sampled: int = 0
    wasted: int = 0
    stale: int = 0
    staleness: int = 0
    most_stale: int = 0
    first_end: float | None = None
    last_end: float | None = None


def versions(db: sqlite3.Connection, run: str, agent: str | None) -> list[VersionRow]:
    """Returns a row for each version, oldest first. `agent` None sums over all agents."""
    values = {"run": run, "agent": agent}
    found: defaultdict[int, Sums] = defaultdict(Sums)
    for version, *counts in db.execute(_TALLIES, values):
        _add(found[version], *counts)
    for version, outcome, groups in db.execute(_OUTCOMES, values):
        found[version].outcomes[GroupOutcome(outcome)] = groups
    return [_row(version, found[version]) for version in sorted(found)]


def _add(
    sums: Sums,
    state: int,
    blame: int,
    reason: int,
    rollouts: int,
    rewards: int,
    reward_sum: float,
    successes: int,
    played: int,
    turns: int,
    sampled: int,
    stale: int,
    staleness: int,
    most_stale: int,
    first_end: float,
    last_end: float,
) -> None:
    sums.states[STATES[state]] += rollouts
    if blame >= 0:
        sums.failures[BLAMES[blame]] += rollouts
    if reason >= 0:
        sums.reasons[REASONS[reason]] += rollouts
    sums.rewards += rewards
    sums.reward_sum += reward_sum
    sums.successes += successes
    sums.played += played
    sums.turns += turns
    sums.sampled += sampled
    sums.wasted += 0 if STATES[state] is RolloutState.DONE else sampled
    sums.stale += stale
    sums.staleness += staleness
    sums.most_stale = max(sums.most_stale, most_stale)
    sums.first_end = first_end if sums.first_end is None else min(sums.first_end, first_end)
    sums.last_end = last_end if sums.last_end is None else max(sums.last_end, last_end)


def _row(version: int, sums: Sums) -> VersionRow:
    groups = sums.outcomes.total()
    scored = groups - sums.outcomes[GroupOutcome.UNSCORED]
    return VersionRow(
        policy_version=version,
        rollouts=sums.states.total(),
        done=sums.states[RolloutState.DONE],
        failed=sums.states[RolloutState.FAILED],
        cancelled=sums.states[RolloutState.CANCELLED],
        failures=dict(sums.failures),
        finish_reasons=dict(sums.reasons),
        mean_reward=_mean_reward(sums),
        success_rate=_mean(sums.successes, sums.rewards),
        mean_turns=_mean(sums.turns, sums.played),
        mean_sampled_tokens=_mean(sums.sampled, sums.played),
        sampled_tokens=sums.sampled,
        wasted_tokens=sums.wasted,
        mean_staleness=_mean(sums.staleness, sums.stale),
        max_staleness=sums.most_stale if sums.stale else None,
        groups=groups,
        outcomes={outcome: count for outcome, count in sums.outcomes.items() if count},
        informative_share=_mean(sums.outcomes[GroupOutcome.INFORMATIVE], scored),
        first_ended_at=sums.first_end,
        last_ended_at=sums.last_end,
    )


def _mean_reward(sums: Sums) -> float | None:
    """Returns None also for a sum of an older version that holds rewards that are no scores."""
    mean = _mean(sums.reward_sum, sums.rewards)
    return mean if is_score(mean) else None


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None
