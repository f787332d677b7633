"""The journal's table of whole turns of rollouts that have not ended: they resume from these.

Functions of a connection, as in `tables`. A turn is bytes here; `agents.kept` has their form.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field

from prorl_service.rollouts.journal import tables


@dataclass(frozen=True, slots=True)
class TurnRow:
    rollout_id: str
    number: int
    """Number of the turn in its rollout, from 0."""
    attempt: int
    content: bytes = field(repr=False)
    layer: str = ""
    """Name of the file with what the sandbox held after the turn; empty: nothing is needed."""


KEEP = f"""
INSERT OR REPLACE INTO turns
SELECT number * {tables.STRIDE} + :index, :number, :attempt, :layer, :content
FROM groups WHERE group_id = :group_id AND NOT EXISTS (
    SELECT 1 FROM rollouts WHERE id = groups.number * {tables.STRIDE} + :index AND state IS NOT NULL
)
"""


def keep(db: sqlite3.Connection, rows: Iterable[TurnRow]) -> None:
    """Writes turns; the first turn of a rollout replaces all that were kept. Leaves out those of
    rollouts that have ended or were forgotten."""
    for row in rows:
        if row.number == 0:
            drop(db, row.rollout_id)
        db.execute(KEEP, _values(row))


def _values(row: TurnRow) -> dict[str, object]:
    group_id, _, index = row.rollout_id.rpartition(".")
    return {
        "group_id": group_id,
        "index": int(index),
        "number": row.number,
        "attempt": row.attempt,
        "layer": row.layer,
        "content": row.content,
    }


def kept(db: sqlite3.Connection, rollout_id: str) -> list[TurnRow]:
    """Returns a rollout's turns in order."""
    return [
        TurnRow(rollout_id, number, attempt, content, layer)
        for number, attempt, layer, content in db.execute(
            "SELECT number, attempt, layer, content FROM turns WHERE rollout = ? ORDER BY number",
            (tables.row_id(db, rollout_id),),
        )
    ]


def drop(db: sqlite3.Connection, rollout_id: str) -> None:
    """Deletes a rollout's turns: it starts from scratch."""
    db.execute("DELETE FROM turns WHERE rollout = ?", (tables.row_id(db, rollout_id),))


def layers(db: sqlite3.Connection) -> set[str]:
    """Returns the names of all files that turns need."""
    return {name for (name,) in db.execute("SELECT DISTINCT layer FROM turns WHERE layer != ''")}
