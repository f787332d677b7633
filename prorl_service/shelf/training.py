"""A run by policy version, for the view of training: counts on the shelf, and their sums.

Each rollout counts for one version, its `policy_version`; a whole group counts for that of its
newest rollout. Both are counted when they end, and stay counted when their rows are evicted.
"""

import math
import operator
import sqlite3
from collections import Counter
from typing import Self

from pydantic import BaseModel

from prorl_service.schemas import Blame, FinishReason, RolloutState
from prorl_service.schemas.numbers import is_score
from prorl_service.schemas.training import VersionRow
from prorl_service.schemas.views import GroupOutcome, RolloutRow
from prorl_service.shelf.rows import blame_of


class VersionCounts(BaseModel):
    """Counts of the rollouts of one version."""

    states: Counter[RolloutState] = Counter()
    failures: Counter[Blame] = Counter()
    reasons: Counter[FinishReason] = Counter()
    outcomes: Counter[GroupOutcome] = Counter()
    rewards: int = 0
    """Number of rollouts with a reward."""
    reward_sum: float = 0.0
    successes: int = 0
    played: int = 0
    """Number of rollouts that sampled."""
    turns: int = 0
    sampled: int = 0
    wasted: int = 0
    stale: int = 0
    """Number of rollouts with a staleness."""
    staleness: int = 0
    most_stale: int = 0
    first_end: float = math.inf
    last_end: float = 0.0

    @classmethod
    def of(cls, row: RolloutRow) -> Self:
        """Returns the counts of one ended rollout."""
        blame, sampled = blame_of(row), row.sampled_tokens or 0
        ended_at = row.ended_at or 0.0
        counts = cls(
            states=Counter([row.state]),
            failures=Counter(() if blame is None else [blame]),
            reasons=Counter(() if row.finish_reason is None else [row.finish_reason]),
            played=bool(row.turns),
            turns=row.turns or 0,
            sampled=sampled,
            wasted=0 if row.state is RolloutState.DONE else sampled,
            first_end=ended_at,
            last_end=ended_at,
        )
        if is_score(row.reward):
            counts.rewards, counts.reward_sum, counts.successes = 1, row.reward, row.reward >= 1
        if row.staleness is not None:
            counts.stale, counts.staleness, counts.most_stale = 1, *[row.staleness] * 2
        return counts

    def add(self, other: Self) -> None:
        for name in type(self).model_fields:
            own, others = getattr(self, name), getattr(other, name)
            setattr(self, name, _JOINED.get(name, operator.add)(own, others))

    def to_wire(self, version: int) -> VersionRow:
        groups = self.outcomes.total()
        scored = groups - self.outcomes[GroupOutcome.UNSCORED]
        return VersionRow(
            policy_version=version,
            rollouts=self.states.total(),
            done=self.states[RolloutState.DONE],
            failed=self.states[RolloutState.FAILED],
            cancelled=self.states[RolloutState.CANCELLED],
            failures=dict(self.failures),
            finish_reasons=dict(self.reasons),
            mean_reward=_mean(self.reward_sum, self.rewards),
            success_rate=_mean(self.successes, self.rewards),
            mean_turns=_mean(self.turns, self.played),
            mean_sampled_tokens=_mean(self.sampled, self.played),
            sampled_tokens=self.sampled,
            wasted_tokens=self.wasted,
            mean_staleness=_mean(self.staleness, self.stale),
            max_staleness=self.most_stale if self.stale else None,
            groups=groups,
            outcomes=dict(self.outcomes),
            informative_share=_mean(self.outcomes[GroupOutcome.INFORMATIVE], scored),
            first_ended_at=self.first_end,
            last_ended_at=self.last_end,
        )


_JOINED = {"most_stale": max, "first_end": min, "last_end": max}
"""Functions that join two counts, where they are not added."""


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


def count(db: sqlite3.Connection, run: str, agent: str, version: int, new: VersionCounts) -> None:
    """Adds counts to those of the version."""
    key = (run, version, agent)
    query = "SELECT counts FROM versions WHERE run = ? AND version = ? AND agent = ?"
    if (known := db.execute(query, key).fetchone()) is not None:
        new.add(VersionCounts.model_validate_json(known[0]))
    counts = new.model_dump_json(exclude_defaults=True).encode()
    db.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?)", (*key, counts))


def versions(db: sqlite3.Connection, run: str, agent: str | None) -> list[VersionRow]:
    """Returns a row for each version, oldest first. `agent` None sums over all agents."""
    found: dict[int, VersionCounts] = {}
    query = "SELECT version, counts FROM versions WHERE run = ? AND ? IN (agent, '')"
    for version, counts in db.execute(query, (run, agent or "")):
        new = VersionCounts.model_validate_json(counts)
        if found.setdefault(version, new) is not new:
            found[version].add(new)
    return [found[version].to_wire(version) for version in sorted(found)]


def runs(db: sqlite3.Connection) -> list[str]:
    """Returns the names of all runs that have counts here."""
    return [run for (run,) in db.execute("SELECT DISTINCT run FROM versions ORDER BY run")]


def drop_others(db: sqlite3.Connection, run: str) -> None:
    """Deletes the counts of other runs that have no groups here any more."""
    query = "DELETE FROM versions WHERE run <> ? AND run NOT IN (SELECT run FROM groups)"
    db.execute(query, (run,))
