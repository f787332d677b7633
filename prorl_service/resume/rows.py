"""The journal's tables of what rollouts that have not ended continue from.

Functions of a connection, as in `journal.tables`. All is bytes here; `turns` has their form. A
checksum over all that a rollout continues from tells a damaged, missing or foreign part.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from prorl_service.rollouts.journal import tables


@dataclass(frozen=True, slots=True)
class SavedRollout:
    rollout_id: str
    attempt: int
    """Attempt that wrote it last."""
    turns: Mapping[int, bytes] = field(repr=False)
    """Turns by their numbers, which begin with 0. To be written: those that are new."""
    content: bytes = field(repr=False)
    """What the rollout does next. It replaces what was written before."""
    layer: str = ""
    """Name of the file with what the sandbox held after the turns; empty: nothing is needed."""
    checksum: int = 0

    def sealed(self, turns_checksum: int, count: int) -> Self:
        """Returns it with its checksum. `turns_checksum` and `count` are of all of its turns."""
        about = f"{self.rollout_id}\n{self.attempt}\n{self.layer}\n{count}\n".encode()
        return replace(self, checksum=zlib.crc32(about + self.content, turns_checksum))

    def check(self) -> None:
        """Raises `ValueError` unless this is what was written, all of it."""
        if not self.content:
            raise ValueError("an earlier version of the service kept its turns, without a checksum")
        if [*self.turns] != [*range(len(self.turns))]:
            raise ValueError(f"its kept turns are {[*self.turns]}: some are missing")
        sealed = self.sealed(checksum_of(self.turns), len(self.turns))
        if sealed.checksum != self.checksum:
            raise ValueError("its kept turns are not what was written: their checksum is another")


def checksum_of(turns: Mapping[int, bytes], before: int = 0) -> int:
    """Returns the checksum of turns that follow those with the checksum `before`."""
    for number, content in turns.items():
        before = zlib.crc32(number.to_bytes(4, "little") + content, before)
    return before


def save(db: sqlite3.Connection, rows: Iterable[SavedRollout]) -> None:
    """Writes turns and what comes next; the first turn of a rollout replaces all that were saved.
    Leaves out those of rollouts that have ended or were forgotten."""
    for row in rows:
        own_id = tables.row_id(db, row.rollout_id)
        if own_id is None or _has_ended(db, own_id):
            continue
        if 0 in row.turns:
            drop(db, row.rollout_id)
        db.executemany(
            "INSERT OR REPLACE INTO turns VALUES (?, ?, ?)",
            [(own_id, number, content) for number, content in row.turns.items()],
        )
        db.execute(
            "INSERT OR REPLACE INTO continuations VALUES (?, ?, ?, ?, ?)",
            (own_id, row.attempt, row.layer, row.checksum, row.content),
        )


def _has_ended(db: sqlite3.Connection, own_id: int) -> bool:
    query = "SELECT 1 FROM rollouts WHERE id = ? AND state IS NOT NULL"
    return db.execute(query, (own_id,)).fetchone() is not None


def saved(db: sqlite3.Connection, rollout_id: str) -> SavedRollout | None:
    """Returns what the rollout continues from, unchecked; None if it starts from scratch."""
    own_id = tables.row_id(db, rollout_id)
    found = db.execute(
        "SELECT attempt, layer, checksum, content FROM continuations WHERE rollout = ?", (own_id,)
    ).fetchone()
    if found is None:
        return None
    attempt, layer, checksum, content = found
    query = "SELECT number, content FROM turns WHERE rollout = ? ORDER BY number"
    turns = dict(db.execute(query, (own_id,)).fetchall())
    return SavedRollout(rollout_id, attempt, turns, content, layer, checksum)


def drop(db: sqlite3.Connection, rollout_id: str) -> None:
    """Deletes what the rollout would continue from: it starts from scratch."""
    own_id = tables.row_id(db, rollout_id)
    for table in ("turns", "continuations"):
        db.execute(f"DELETE FROM {table} WHERE rollout = ?", (own_id,))


def layers(db: sqlite3.Connection) -> set[str]:
    """Returns the names of all files that rollouts need."""
    names = db.execute("SELECT DISTINCT layer FROM continuations WHERE layer != ''")
    return {name for (name,) in names}


def note_calls(db: sqlite3.Connection, rollout_id: str, turn: int, calls: int) -> None:
    """Notes calls of a turn whose effects no restart takes back, before they are made."""
    own_id = tables.row_id(db, rollout_id)
    if own_id is not None and not _has_ended(db, own_id):
        db.execute(
            "INSERT INTO outside_calls VALUES (?, ?, ?)"
            " ON CONFLICT DO UPDATE SET calls = calls + excluded.calls",
            (own_id, turn, calls),
        )


def calls_from(db: sqlite3.Connection, rollout_id: str, turn: int) -> int:
    """Returns how many such calls of this turn and later ones may have been made."""
    query = "SELECT coalesce(sum(calls), 0) FROM outside_calls WHERE rollout = ? AND turn >= ?"
    (calls,) = db.execute(query, (tables.row_id(db, rollout_id), turn)).fetchone()
    return int(calls)
