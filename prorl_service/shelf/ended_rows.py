"""Rows of ended rollouts and their groups on the shelf, as they are written.

Plain functions on a connection; the caller opens the transaction and handles `sqlite3.Error`.
"""

import sqlite3
from collections import Counter
from dataclasses import dataclass

from prorl_service.rollouts.journal.tables import EndedRow
from prorl_service.schemas import Rollout
from prorl_service.schemas.numbers import is_score
from prorl_service.schemas.views import KeptFor, RolloutRow
from prorl_service.shelf import training
from prorl_service.shelf.rows import blame_of, outcome_of, row_of
from prorl_service.shelf.tables import STRIDE, ContentState, compressed, within
from prorl_service.shelf.training import VersionCounts


@dataclass(frozen=True, slots=True)
class ShelvedGroup:
    """A group's place on the shelf."""

    number: int
    created_at: float
    kept: KeptFor | None = None

    def row_id(self, index: int) -> int:
        return self.number * STRIDE + index


def row_of_ended(row: EndedRow, run: str, service_version: int) -> RolloutRow:
    """`service_version` was the newest policy version when the rollout ended."""
    rollout = Rollout.model_validate_json(row.summary)
    newest, oldest = rollout.newest_policy_version, rollout.oldest_policy_version
    return row_of(
        rollout,
        row.figures,
        run=run,
        client=row.client,
        has_content=False,
        ended_at=row.ended_at,
        policy_version=service_version if newest is None else newest,
        staleness=None if oldest is None else max(0, service_version - oldest),
    )


def find_group(db: sqlite3.Connection, group_id: str, run: str) -> ShelvedGroup | None:
    found = db.execute(
        "SELECT number, created_at, kept FROM groups WHERE group_id = ? AND run = ?",
        (group_id, run),
    ).fetchone()
    if found is None:
        return None
    number, created_at, kept = found
    return ShelvedGroup(number, created_at, KeptFor(kept) if kept else None)


def add_group(
    db: sqlite3.Connection, row: RolloutRow, model: str, n: int, shelved_at: float
) -> ShelvedGroup:
    """Adds the group of an ended rollout."""
    number = db.execute(
        "INSERT INTO groups"
        " (created_at, n, shelved_at, agent, client, run, group_id, task_id, model)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(row.created_at, n, shelved_at, row.agent, row.client),
            *(row.run, row.group_id, row.task_id, model),
        ),
    ).lastrowid
    assert number is not None
    return ShelvedGroup(number, row.created_at)


def has_rollout(db: sqlite3.Connection, row_id: int) -> bool:
    return db.execute("SELECT 1 FROM rollouts WHERE id = ?", (row_id,)).fetchone() is not None


def add_rollout(db: sqlite3.Connection, group: ShelvedGroup, row: RolloutRow) -> None:
    """Adds the rollout's row and counts it; its content is `NEVER` until marked otherwise."""
    row_id = group.row_id(row.index)
    db.execute(
        "INSERT INTO rollouts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row_id,
            ContentState.NEVER,
            row.state,
            blame_of(row),
            row.finish_reason,
            row.policy_version,
            row.reward if is_score(row.reward) else None,
            row.turns,
            row.sampled_tokens,
            row.timings.run_s,
            row.ended_at,
        ),
    )
    summary = row.model_dump_json(exclude_defaults=True).encode()
    db.execute("INSERT INTO summaries VALUES (?, ?)", (row_id, compressed(summary)))
    version = row.policy_version or 0
    training.count(db, row.run, row.agent, version, VersionCounts.of(row))
    n, ended = db.execute(
        "UPDATE groups SET ended = ended + 1 WHERE number = ? RETURNING n, ended", (group.number,)
    ).fetchone()
    if ended == n:
        newest, least, greatest = db.execute(
            "SELECT max(policy_version), min(reward), max(reward) FROM rollouts"
            " WHERE id >= ? AND id < ?",
            within(group.number),
        ).fetchone()
        outcome = outcome_of(n, ended, least, greatest)
        db.execute("UPDATE groups SET outcome = ? WHERE number = ?", (outcome, group.number))
        training.count(db, row.run, row.agent, newest, VersionCounts(outcomes=Counter([outcome])))


def keep(db: sqlite3.Connection, number: int, reason: KeptFor) -> None:
    db.execute("UPDATE groups SET kept = ? WHERE number = ?", (reason.value, number))


def without_content(db: sqlite3.Connection, number: int) -> list[int]:
    """Returns rows of the group's rollouts whose content is not kept and not awaited."""
    query = "SELECT id FROM rollouts WHERE id >= ? AND id < ? AND content = ?"
    return [row_id for (row_id,) in db.execute(query, (*within(number), ContentState.NEVER))]


def awaited(db: sqlite3.Connection) -> list[int]:
    """Returns rows of rollouts whose content an earlier process did not copy."""
    query = "SELECT id FROM rollouts WHERE content = ?"
    return [row_id for (row_id,) in db.execute(query, (ContentState.AWAITED,))]


def firsts(db: sqlite3.Connection, run: str) -> dict[int, int]:
    """Returns how many groups are kept as the first of their version, by version."""
    query = f"""
        SELECT least, count(*) FROM (
            SELECT (SELECT min(policy_version) FROM rollouts r WHERE r.id >= g.number * {STRIDE}
                AND r.id < (g.number + 1) * {STRIDE}) AS least
            FROM groups g WHERE kept = ? AND run = ?
        ) GROUP BY least
    """
    return dict(db.execute(query, (KeptFor.FIRST.value, run)).fetchall())
