"""Whole rollouts on the shelf, and what goes when there is no room: contents first, rows later.

Plain functions of a connection, each to be run inside a transaction of the caller's. What raises
`sqlite3.Error` is the caller's to judge.
"""

import sqlite3

from prorl_service.shelf.tables import STRIDE, Content, within


def mark(db: sqlite3.Connection, row_id: int, content: Content) -> None:
    db.execute("UPDATE rollouts SET content = ? WHERE id = ?", (content, row_id))


def put_content(db: sqlite3.Connection, row_id: int, content: bytes) -> None:
    """`content` is compressed."""
    db.execute("INSERT OR REPLACE INTO contents VALUES (?, ?)", (row_id, content))
    mark(db, row_id, Content.HERE)
    _add_bytes(db, len(content))


def has_request(db: sqlite3.Connection, number: int) -> bool:
    return db.execute("SELECT 1 FROM requests WHERE number = ?", (number,)).fetchone() is not None


def put_request(db: sqlite3.Connection, number: int, request: bytes) -> None:
    """`request` is compressed."""
    db.execute("INSERT INTO requests VALUES (?, ?)", (number, request))
    _add_bytes(db, len(request))


def bytes_of(db: sqlite3.Connection, number: int) -> int:
    """What the content of a group takes."""
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
    """Number of the group that came first, and when it came."""
    query = "SELECT number, shelved_at FROM groups ORDER BY number LIMIT 1"
    found: tuple[int, float] | None = db.execute(query).fetchone()
    return found


def evict_content(db: sqlite3.Connection, number: int) -> None:
    """Of all rollouts of the group."""
    _add_bytes(db, -bytes_of(db, number))
    rows = within(number)
    db.execute("DELETE FROM contents WHERE id >= ? AND id < ?", rows)
    db.execute("DELETE FROM requests WHERE number = ?", (number,))
    db.execute(
        "UPDATE rollouts SET content = ? WHERE id >= ? AND id < ? AND content = ?",
        (Content.EVICTED, *rows, Content.HERE),
    )


def evict_group(db: sqlite3.Connection, number: int) -> None:
    """Its rows, too."""
    db.execute(
        "UPDATE totals SET evicted_until ="
        " max(evicted_until, (SELECT created_at FROM groups WHERE number = ?))",
        (number,),
    )
    remove_group(db, number)


def evicted_until(db: sqlite3.Connection) -> float:
    """When the latest group was created whose rows were evicted."""
    (created_at,) = db.execute("SELECT evicted_until FROM totals").fetchone()
    return float(created_at)


def remove_group(db: sqlite3.Connection, number: int) -> None:
    evict_content(db, number)
    rows = within(number)
    db.execute("DELETE FROM summaries WHERE id >= ? AND id < ?", rows)
    db.execute("DELETE FROM rollouts WHERE id >= ? AND id < ?", rows)
    db.execute("DELETE FROM groups WHERE number = ?", (number,))
