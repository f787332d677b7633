"""Who learns of ended rollouts as soon as they are on disk, in the journal's own thread.

The journal knows nothing of what a follower does with them. A follower raises nothing: one that
does all the same is dropped, and the journal goes on without it. It reads the journal by the
functions here, which find the content of forgotten groups, too, until that is deleted, and raise
`ResultLost` where the file is damaged. It is no
`observers.Observer`, which the event loop tells what happens: a follower has the file at hand.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from prorl_service.rollouts.journal.seals import losing_damaged, opened
from prorl_service.rollouts.journal.tables import STRIDE, EndedRow


class Follower(Protocol):
    """All methods are called by the writer's thread, outside any transaction; `db` is its
    connection, to be read only. Time counts: writes wait meanwhile."""

    @property
    def lock(self) -> Lock:
        """Held from before callers learn of ended rollouts until `ended` has returned: whoever
        takes it afterwards finds here what the event loop knew before."""

    def ended(self, db: sqlite3.Connection, rows: Sequence[EndedRow]) -> None:
        """Rollouts that the last transaction ended."""

    def copy(self, db: sqlite3.Connection, is_over: Callable[[], bool]) -> bool:
        """A slice of what needs the journal's content. Whether something is left: the content of
        forgotten groups is not deleted before."""

    def tidy(self, is_over: Callable[[], bool]) -> bool:
        """A slice of its own housekeeping. Whether something is left."""

    def finish(self, db: sqlite3.Connection) -> None:
        """The journal is about to be closed."""


@dataclass(frozen=True, slots=True)
class FoundGroup:
    number: int
    group_id: str
    n: int

    def row_id(self, index: int) -> int:
        return self.number * STRIDE + index


_GROUPS = "SELECT number, group_id, unended + done + failed + cancelled FROM groups"


def find_group(db: sqlite3.Connection, group_id: str) -> FoundGroup | None:
    """None once it is forgotten."""
    with losing_damaged():
        found = db.execute(f"{_GROUPS} WHERE group_id = ?", (group_id,)).fetchone()
    return None if found is None else FoundGroup(*found)


def next_group(db: sqlite3.Connection, number: int) -> FoundGroup | None:
    """The first from `number` on that is not forgotten."""
    query = f"{_GROUPS} WHERE number >= ? ORDER BY number LIMIT 1"
    with losing_damaged():
        found = db.execute(query, (number,)).fetchone()
    return None if found is None else FoundGroup(*found)


def ended_in(db: sqlite3.Connection, group: FoundGroup) -> list[int]:
    """Indices of its ended rollouts."""
    query = "SELECT id FROM rollouts WHERE id >= ? AND id < ? AND state IS NOT NULL"
    first = group.number * STRIDE
    with losing_damaged():
        return [row_id - first for (row_id,) in db.execute(query, (first, first + STRIDE))]


def answer_at(db: sqlite3.Connection, row_id: int) -> bytes | None:
    """None once it is deleted. Raises `ResultLost`."""
    with losing_damaged():
        found = db.execute("SELECT answer FROM rollouts WHERE id = ?", (row_id,)).fetchone()
    return None if found is None or found[0] is None else opened(found[0], row_id)


def ended_at(db: sqlite3.Connection, row_id: int) -> tuple[bytes, bytes]:
    """Summary and answer of a rollout that `ended_in` found. Raises `ResultLost`."""
    query = "SELECT summary, answer FROM rollouts WHERE id = ?"
    with losing_damaged():
        summary, answer = db.execute(query, (row_id,)).fetchone()
    return opened(summary, row_id), opened(answer, row_id)


def request_at(db: sqlite3.Connection, number: int) -> bytes | None:
    """The group's request. None once it is deleted."""
    with losing_damaged():
        found = db.execute("SELECT request FROM requests WHERE number = ?", (number,)).fetchone()
    return None if found is None else found[0]
