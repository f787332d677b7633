"""Rows of ended rollouts and their groups on the shelf, and the counts of both.

Plain functions on a connection; the caller opens the transaction and handles `sqlite3.Error`.
"""

import sqlite3
from dataclasses import dataclass

from prorl_service.rollouts.journal.tables import EndedRow
from prorl_service.schemas import Blame, ErrorInfo, Figures, Rollout, RolloutState
from prorl_service.schemas.numbers import is_score
from prorl_service.schemas.views import KeptFor
from prorl_service.shelf.tables import (
    BLAMES,
    OUTCOME,
    REASONS,
    STATES,
    STRIDE,
    Content,
    compressed,
    name,
    within,
)


@dataclass(frozen=True, slots=True)
class Ended:
    """An ended rollout, with the facts that become its row."""

    rollout: Rollout
    """The rollout without trajectory and report."""
    figures: Figures
    ended_at: float
    version: int
    """Policy version that it counts for."""
    staleness: int | None
    summary: bytes

    @property
    def failure(self) -> ErrorInfo | None:
        """None for a cancelled rollout: its error, if any, says why it was cancelled."""
        return self.rollout.error if self.rollout.state is RolloutState.FAILED else None

    @property
    def blame(self) -> Blame | None:
        return self.failure.blame if self.failure is not None else None


@dataclass(frozen=True, slots=True)
class Place:
    """A group's place on the shelf."""

    number: int
    kept: KeptFor | None

    def row_id(self, index: int) -> int:
        return self.number * STRIDE + index


def ended_of(row: EndedRow, service_version: int) -> Ended:
    """`service_version` was the newest policy version when the rollout ended."""
    rollout = Rollout.model_validate_json(row.summary)
    newest, oldest = rollout.newest_policy_version, rollout.oldest_policy_version
    return Ended(
        rollout,
        row.figures,
        row.ended_at,
        service_version if newest is None else newest,
        None if oldest is None else max(0, service_version - oldest),
        row.summary,
    )


def place(db: sqlite3.Connection, group_id: str, run: int) -> tuple[Place, float] | None:
    """Returns a group's place and when it was created, or None if it is not on the shelf."""
    found = db.execute(
        "SELECT number, kept, created_at FROM groups WHERE group_id = ? AND run = ?",
        (group_id, run),
    ).fetchone()
    if found is None:
        return None
    number, kept, created_at = found
    return Place(number, KeptFor(kept) if kept else None), created_at


def add_group(
    db: sqlite3.Connection, ended: Ended, run: int, model: str, n: int, shelved_at: float
) -> Place:
    rollout = ended.rollout
    number = db.execute(
        "INSERT INTO groups (created_at, run, agent, model, n, ended_at, shelved_at, least_version,"
        " greatest_version, group_id, task_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            rollout.created_at,
            run,
            name(db, rollout.agent),
            name(db, model),
            n,
            ended.ended_at,
            shelved_at,
            ended.version,
            ended.version,
            rollout.group_id,
            rollout.task_id,
        ),
    ).lastrowid
    assert number is not None
    return Place(number, None)


def has_rollout(db: sqlite3.Connection, row_id: int) -> bool:
    return db.execute("SELECT 1 FROM rollouts WHERE id = ?", (row_id,)).fetchone() is not None


def add_rollout(db: sqlite3.Connection, place: Place, ended: Ended) -> None:
    """Adds the rollout's row; its content is `NEVER` until marked otherwise."""
    rollout, figures, row_id = ended.rollout, ended.figures, place.row_id(ended.rollout.index)
    codes = {
        "state": STATES.index(rollout.state),
        "blame": BLAMES.index(ended.blame) if ended.blame is not None else None,
        "reason": REASONS.index(figures.finish_reason) if figures.finish_reason else None,
    }
    db.execute(
        "INSERT INTO rollouts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row_id,
            *codes.values(),
            ended.version,
            rollout.reward,
            ended.staleness,
            figures.turns,
            figures.sampled_tokens,
            figures.segments,
            Content.NEVER,
            ended.ended_at,
            figures.model_s,
            figures.tool_s,
        ),
    )
    db.execute("INSERT INTO summaries VALUES (?, ?)", (row_id, compressed(ended.summary)))
    bits = {one: 0 if code is None else 1 << code for one, code in codes.items()}
    score = rollout.reward if is_score(rollout.reward) else None
    values = {"reward": score, "version": ended.version, "ended_at": ended.ended_at}
    run, agent, is_whole = db.execute(
        _COUNT_IN, {"number": place.number, **bits, **values}
    ).fetchone()
    counts = {
        "turns": figures.turns,
        "sampled": figures.sampled_tokens,
        "staleness": ended.staleness,
    }
    by = {"run": run, "agent": agent}
    none = {one: -1 if code is None else code for one, code in codes.items()}
    db.execute(_TALLY, {**by, **none, **values, **counts})
    if is_whole:
        db.execute(_COUNT_OUTCOME, (place.number,))


_COUNT_IN = """
UPDATE groups SET
    ended = ended + 1,
    ended_at = max(ended_at, :ended_at),
    states = states | :state,
    blames = blames | :blame,
    reasons = reasons | :reason,
    least_version = min(least_version, :version),
    greatest_version = max(greatest_version, :version),
    rewards = rewards + (:reward IS NOT NULL),
    reward_sum = reward_sum + coalesce(:reward, 0.0),
    least_reward = coalesce(min(coalesce(least_reward, :reward), :reward), least_reward),
    greatest_reward = coalesce(max(coalesce(greatest_reward, :reward), :reward), greatest_reward)
WHERE number = :number
RETURNING run, agent, ended = n
"""
_TALLY = """
INSERT INTO tallies VALUES (
    :run, :version, :agent, :state, :blame, :reason, 1, :reward IS NOT NULL, coalesce(:reward, 0.0),
    coalesce(:reward >= 1, 0), :turns > 0, :turns, :sampled, :staleness IS NOT NULL,
    coalesce(:staleness, 0), coalesce(:staleness, 0), :ended_at, :ended_at
) ON CONFLICT DO UPDATE SET
    rollouts = rollouts + 1,
    rewards = rewards + excluded.rewards,
    reward_sum = reward_sum + excluded.reward_sum,
    successes = successes + excluded.successes,
    played = played + excluded.played,
    turns = turns + excluded.turns,
    sampled = sampled + excluded.sampled,
    stale = stale + excluded.stale,
    staleness = staleness + excluded.staleness,
    most_stale = max(most_stale, excluded.most_stale),
    first_end = min(first_end, excluded.first_end),
    last_end = max(last_end, excluded.last_end)
"""
_COUNT_OUTCOME = f"""
INSERT INTO outcomes
SELECT run, greatest_version, agent, {OUTCOME}, 1 FROM groups WHERE number = ?
ON CONFLICT DO UPDATE SET groups = groups + 1
"""


def keep(db: sqlite3.Connection, number: int, reason: KeptFor) -> None:
    db.execute("UPDATE groups SET kept = ? WHERE number = ?", (reason.value, number))


def without_content(db: sqlite3.Connection, number: int) -> list[int]:
    """Returns rows of the group's rollouts whose content is not kept and not awaited."""
    return [
        row_id
        for (row_id,) in db.execute(
            "SELECT id FROM rollouts WHERE id >= ? AND id < ? AND content = ?",
            (*within(number), Content.NEVER),
        )
    ]


def awaited(db: sqlite3.Connection) -> list[int]:
    """Returns rows of rollouts whose content an earlier process did not copy."""
    query = "SELECT id FROM rollouts WHERE content = ?"
    return [row_id for (row_id,) in db.execute(query, (Content.AWAITED,))]


def drop_counts_of_others(db: sqlite3.Connection, run: int) -> None:
    """Deletes the counts of other runs that have no groups here any more."""
    for table in ("tallies", "outcomes"):
        db.execute(
            f"DELETE FROM {table} WHERE run <> ? AND run NOT IN (SELECT run FROM groups)", (run,)
        )


def firsts(db: sqlite3.Connection, run: int) -> dict[int, int]:
    """Returns how many groups are kept as the first of their version, by version."""
    query = (
        "SELECT least_version, count(*) FROM groups WHERE kept = ? AND run = ?"
        " GROUP BY least_version"
    )
    return dict(db.execute(query, (KeptFor.FIRST.value, run)).fetchall())
