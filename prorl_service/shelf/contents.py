"""Whole rollouts on the shelf, and their eviction: contents first, rows later.

Plain functions on a connection; the caller opens the transaction and handles `sqlite3.Error`.
"""

import sqlite3

from prorl_service.shelf.tables import STRIDE, ContentState, within


def mark(db: sqlite3.Connection, row_id: int, content: ContentState) -> None:
    db.execute("UPDATE rollouts SET content = ? WHERE id = ?", (content, row_id))


def put_content(db: sqlite3.Connection, row_id: int, content: bytes) -> None:
    """Stores `content`, which is compressed."""
    db.execute("INSERT OR REPLACE INTO contents VALUES (?, ?)", (row_id, content))
    mark(db, row_id, ContentState.HERE)
    _add_bytes(db, len(content))


def has_request(db: sqlite3.Connection, number: int) -> bool:
    return db.execute("SELECT 1 FROM requests WHERE number = ?", (number,)).fetchone() is not None


def put_request(db: sqlite3.Connection, number: int, request: bytes) -> None:
    """Stores `request`, which is compressed."""
    db.execute("INSERT INTO requests VALUES (?, ?)", (number, request))
    _add_bytes(db, len(request))


def bytes_of(db: sqlite3.Connection, number: int) -> int:
    """Returns the size of a group's content."""
    (contents,) = db.execute(
        "SELECT coalesce(sum(length(content)), 0) FROM contents WHERE id >= ? AND id < ?",
        within(number),
    ).fetchone()
    (request,) = db.execute(
        "SELECT coalesce(sum(length(request)), 0) FROM requests WHERE number = ?", (number,)
    ).fetchone()
    return int(contents + request)


def _add_bytes(db: sqlite3.Connection, count: int) -> None:
    db.execute("UPDATE totals SET contents = contents + ?", (count,))


# --- eviction -----------------------------------------------------------------------------------


def contents_bytes(db: sqlite3.Connection) -> int:
    (count,) = db.execute("SELECT contents FROM totals").fetchone()
    return int(count)


def oldest_with_content(db: sqlite3.Connection) -> int | None:
    found = db.execute("SELECT id FROM contents ORDER BY id LIMIT 1").fetchone()
    return None if found is None else int(found[0]) // STRIDE


def oldest(db: sqlite3.Connection) -> tuple[int, float] | None:
    """Returns the number of the group shelved first, and when it was shelved."""
    query = "SELECT number, shelved_at FROM groups ORDER BY number LIMIT 1"
    found: tuple[int, float] | None = db.execute(query).fetchone()
    return found


def evict_content(db: sqlite3.Connection, number: int) -> None:
    """Deletes the content of all the group's rollouts; their rows stay."""
    _add_bytes(db, -bytes_of(db, number))
    rows = within(number)
    db.execute("DELETE FROM contents WHERE id >= ? AND id < ?", rows)
    db.execute("DELETE FROM requests WHERE number = ?", (number,))
    db.execute(
        "UPDATE rollouts SET content = ? WHERE id >= ? AND id < ? AND content = ?",
        (ContentState.EVICTED, *rows, ContentState.HERE),
    )


def evict_group(db: sqlite3.Connection, number: int) -> None:
    """Deletes the group's content and its rows."""
    db.execute(
        "UPDATE totals SET evicted_until ="
        " max(evicted_until, (SELECT created_at FROM groups WHERE number = ?))",
        (number,),
    )
    remove_group(db, number)


def evicted_until(db: sqlite3.Connection) -> float:
    """Returns when the newest group with evicted rows was created."""
    (created_at,) = db.execute("SELECT evicted_until FROM totals").fetchone()
    return float(created_at)


def remove_group(db: sqlite3.Connection, number: int) -> None:
    evict_content(db, number)
    rows = within(number)
    db.execute("DELETE FROM summaries WHERE id >= ? AND id < ?", rows)
    db.execute("DELETE FROM rollouts WHERE id >= ? AND id < ?", rows)
    db.execute("DELETE FROM groups WHERE number = ?", (number,))
