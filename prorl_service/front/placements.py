"""The service that has each group: in the journal, so that a restarted front asks there first.

Every statement on the table `placements`; the journal runs each function.
"""

import sqlite3
from collections.abc import Callable


def place(group_id: str, service: str) -> Callable[[sqlite3.Connection], None]:
    """Places the group at a service. `service`: its name."""

    def write(db: sqlite3.Connection) -> None:
        db.execute("INSERT OR REPLACE INTO placements VALUES (?, ?)", (group_id, service))

    return write


def remove(group_id: str) -> Callable[[sqlite3.Connection], None]:
    def write(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM placements WHERE group_id = ?", (group_id,))

    return write


def read(db: sqlite3.Connection) -> dict[str, str]:
    """Returns the names of services by group id."""
    return dict(db.execute("SELECT group_id, service FROM placements").fetchall())
