"""Which service has which group: in the journal, so that a front that restarts asks there first.

Every statement of the table `placements`; each function is to be run by the journal.
"""

import sqlite3
from collections.abc import Callable


def place(group_id: str, service: str) -> Callable[[sqlite3.Connection], None]:
    """`service` is its name."""

    def write(db: sqlite3.Connection) -> None:
        db.execute("INSERT OR REPLACE INTO placements VALUES (?, ?)", (group_id, service))

    return write


def remove(group_id: str) -> Callable[[sqlite3.Connection], None]:
    def write(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM placements WHERE group_id = ?", (group_id,))

    return write


def read(db: sqlite3.Connection) -> dict[str, str]:
    """Names of services by group."""
    return dict(db.execute("SELECT group_id, service FROM placements").fetchall())
