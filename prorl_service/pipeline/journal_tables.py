"""The journal's file: its tables, and every statement that reads or writes them.

Plain functions of a connection, each to be run inside a transaction of the caller's. What raises
`sqlite3.Error` is the caller's to judge, but for `open_file`, which says what is wrong.
"""

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from prorl_service.errors import JournalError
from prorl_service.schemas import RolloutState

VERSION = 2
"""To be raised when older code would misread a journal, or newer code an older one: when the tables
change, or `schemas.Group`, which `groups.request` holds."""
APPLICATION_ID = 0x50524F52
LOCK_TIMEOUT_S = 2.0
"""How long a service that is about to end may hold the file."""
MAX_WAL_BYTES = 2**26
"""The write-ahead log is cut back to this when its content is in the file."""
ROW_BYTES = 512
"""What a group or a rollout takes beside its content, roughly."""

TABLES = """
CREATE TABLE groups (
    number INTEGER PRIMARY KEY,
    group_id TEXT NOT NULL UNIQUE,
    unended INTEGER NOT NULL,
    ended_at REAL,
    bytes INTEGER NOT NULL,
    created_at REAL NOT NULL,
    request BLOB NOT NULL
) STRICT;
CREATE INDEX groups_by_end ON groups (ended_at);
CREATE TABLE ended (bytes INTEGER NOT NULL) STRICT;
INSERT INTO ended VALUES (0);
CREATE TABLE rollouts (
    rollout_id TEXT PRIMARY KEY,
    group_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT,
    summary BLOB,
    answer BLOB
) STRICT;
CREATE INDEX rollouts_by_group ON rollouts (group_id, state);
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE samplers (sampler_id TEXT PRIMARY KEY, state BLOB NOT NULL) STRICT;
CREATE TABLE candidates (
    number INTEGER PRIMARY KEY,
    sampler_id TEXT NOT NULL,
    name TEXT NOT NULL,
    task_id TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    begun_in TEXT,
    oldest_version INTEGER,
    request BLOB,
    UNIQUE (sampler_id, name)
) STRICT;
"""
"""A rollout has a row once it was begun; `state` is NULL until it has ended. `answer` is the whole
rollout as packed JSON, `summary` the same without the trajectory. Large columns come last: what is
before them is read without them. A candidate that is at its end has no request any more.
`ended.bytes` is what all ended groups take. `facts` is what else
a restarted service must know."""


@dataclass(frozen=True, slots=True)
class AcceptedRow:
    group_id: str
    n: int
    request: bytes
    created_at: float


@dataclass(frozen=True, slots=True)
class EndedRow:
    rollout_id: str
    group_id: str
    attempt: int
    state: RolloutState
    summary: bytes
    answer: bytes


@dataclass(frozen=True, slots=True)
class UnfinishedGroup:
    request: bytes
    created_at: float
    attempts: dict[str, int] = field(default_factory=dict)
    """Of the rollouts that were begun and have not ended."""
    ended: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended groups are kept that nobody acknowledges. The newest is never too large."""

    keep_bytes: int = 2**32
    keep_s: float = 7 * 86_400.0


def open_file(path: Path | None) -> sqlite3.Connection:
    """Creates it if need be. Raises `JournalError` for a file that cannot be used."""
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        # Commits are in the caller's hands; the connection is made in one thread, used in another.
        db = sqlite3.connect(
            path or ":memory:",
            timeout=LOCK_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            _prepare(db, path)
        except BaseException:
            db.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise _unusable(path, error) from error
    return db


def _prepare(db: sqlite3.Connection, path: Path | None) -> None:
    db.execute("PRAGMA locking_mode = EXCLUSIVE")  # one service a file; no shared memory needed
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")  # survives the machine too, one fsync a transaction
    db.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
    db.execute("BEGIN EXCLUSIVE")
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    is_empty = db.execute("SELECT 1 FROM sqlite_schema").fetchone() is None
    if is_empty:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        for statement in filter(str.strip, TABLES.split(";")):
            db.execute(statement)
    elif application != APPLICATION_ID:
        raise JournalError(f"{path} is a database, but no journal", hint="name another file")
    elif version != VERSION:
        raise JournalError(
            f"the journal {path} is of version {version}, this service's are of {VERSION}",
            hint="let the service that wrote it finish it, or start with a new file",
        )
    db.execute("COMMIT")


def _unusable(path: Path | None, error: sqlite3.Error | OSError) -> JournalError:
    if isinstance(error, OSError):
        return JournalError(f"cannot create the journal {path}: {error.strerror}")
    match error.sqlite_errorcode & 0xFF:
        case sqlite3.SQLITE_BUSY:
            problem, hint = "is in use", "another service has it; give every service its own"
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            problem = "is damaged"
            hint = "move it away to start with an empty one; `sqlite3 FILE .recover` may save it"
        case _:
            problem, hint = "cannot be opened", ""
    return JournalError(f"the journal {path} {problem}: {error}", hint=hint)


# --- writing ------------------------------------------------------------------------------------


def accept(db: sqlite3.Connection, groups: Iterable[AcceptedRow]) -> bool:
    """All of them, or none and False if one is there already."""
    groups = list(groups)
    if find(db, [group.group_id for group in groups]):
        return False
    db.executemany(
        "INSERT INTO groups (group_id, unended, bytes, created_at, request) VALUES (?, ?, ?, ?, ?)",
        [
            (one.group_id, one.n, len(one.request) + ROW_BYTES, one.created_at, one.request)
            for one in groups
        ],
    )
    return True


def begin(db: sqlite3.Connection, rollout_id: str, group_id: str, attempt: int) -> None:
    db.execute(
        "INSERT INTO rollouts (rollout_id, group_id, attempt) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET attempt = excluded.attempt",
        (rollout_id, group_id, attempt),
    )


def end(db: sqlite3.Connection, row: EndedRow, retention: Retention) -> Counter[str]:
    """Forgets groups if the row's is the last of its group; returns as `forget`."""
    db.execute(
        "INSERT OR REPLACE INTO rollouts VALUES (?, ?, ?, ?, ?, ?)",
        (row.rollout_id, row.group_id, row.attempt, row.state, row.summary, row.answer),
    )
    ended_at, size = db.execute(
        "UPDATE groups SET unended = unended - 1, bytes = bytes + ?,"
        " ended_at = CASE unended WHEN 1 THEN ? END WHERE group_id = ? RETURNING ended_at, bytes",
        (len(row.summary) + len(row.answer) + ROW_BYTES, time.time(), row.group_id),
    ).fetchone()
    if ended_at is None:
        return Counter()
    db.execute("UPDATE ended SET bytes = bytes + ?", (size,))
    return forget(db, [one for one in _expired(db, retention) if one != row.group_id])


def forget(db: sqlite3.Connection, group_ids: Iterable[str]) -> Counter[str]:
    """Those that have ended. Returns how many of their rollouts were in which state."""
    states = Counter[str]()
    for group_id in group_ids:
        size = db.execute(
            "DELETE FROM groups WHERE group_id = ? AND ended_at IS NOT NULL RETURNING bytes",
            (group_id,),
        ).fetchone()
        if size is not None:
            db.execute("UPDATE ended SET bytes = bytes - ?", size)
            states.update(_count_states(db, "WHERE group_id = ?", group_id))
            db.execute("DELETE FROM rollouts WHERE group_id = ?", (group_id,))
    return states


def remember(db: sqlite3.Connection, name: str, value: bytes) -> None:
    db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


def _expired(db: sqlite3.Connection, retention: Retention) -> list[str]:
    (size,) = db.execute("SELECT bytes FROM ended").fetchone()
    excess = size - retention.keep_bytes
    oldest = time.time() - retention.keep_s
    group_ids = []
    for group_id, ended_at, size in db.execute(
        "SELECT group_id, ended_at, bytes FROM groups WHERE ended_at IS NOT NULL"
        " ORDER BY ended_at, number"
    ):
        if excess <= 0 and ended_at >= oldest:
            break
        excess -= size
        group_ids.append(group_id)
    return group_ids


# --- reading ------------------------------------------------------------------------------------


def find(db: sqlite3.Connection, group_ids: Iterable[str]) -> dict[str, bytes]:
    """The requests of those that are there."""
    statement = "SELECT request FROM groups WHERE group_id = ?"
    found = ((one, db.execute(statement, (one,)).fetchone()) for one in group_ids)
    return {group_id: row[0] for group_id, row in found if row is not None}


def summaries(db: sqlite3.Connection, rollout_ids: Iterable[str]) -> dict[str, bytes]:
    """Of those that have ended."""
    statement = "SELECT summary FROM rollouts WHERE rollout_id = ? AND state IS NOT NULL"
    found = ((one, db.execute(statement, (one,)).fetchone()) for one in rollout_ids)
    return {rollout_id: row[0] for rollout_id, row in found if row is not None}


def answer(db: sqlite3.Connection, rollout_id: str) -> bytes | None:
    row = db.execute("SELECT answer FROM rollouts WHERE rollout_id = ?", (rollout_id,)).fetchone()
    return None if row is None else row[0]


def recall(db: sqlite3.Connection, name: str) -> bytes | None:
    row = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else row[0]


def unfinished(db: sqlite3.Connection) -> list[UnfinishedGroup]:
    """In the order in which they were accepted."""
    groups = {
        group_id: UnfinishedGroup(request, created_at)
        for group_id, request, created_at in db.execute(
            "SELECT group_id, request, created_at FROM groups WHERE ended_at IS NULL"
            " ORDER BY number"
        )
    }
    for rollout_id, group_id, attempt, state in db.execute(
        "SELECT rollout_id, group_id, attempt, state FROM rollouts"
        " JOIN groups USING (group_id) WHERE ended_at IS NULL"
    ):
        if state is None:
            groups[group_id].attempts[rollout_id] = attempt
        else:
            groups[group_id].ended.add(rollout_id)
    return list(groups.values())


def count_ended(db: sqlite3.Connection) -> Counter[str]:
    return _count_states(db, "WHERE state IS NOT NULL")


def _count_states(db: sqlite3.Connection, where: str, *values: str) -> Counter[str]:
    rows = db.execute(f"SELECT state, count(*) FROM rollouts {where} GROUP BY state", values)
    return Counter(dict(rows.fetchall()))
