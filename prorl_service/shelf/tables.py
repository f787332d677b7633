"""The shelf's tables, and the compression of texts in them.

Statements are in `ended_rows`, `contents` (whole rollouts, eviction), and `queries` and `training`
(reads for people).
"""

import sqlite3
import zlib
from enum import IntEnum

APPLICATION_ID = 0x50525348
VERSION = 3
"""Version of the tables. A shelf of another version is moved aside."""
STRIDE = 4096
"""Row ids reserved for each group; at least `schemas.MAX_GROUP_SIZE`."""
LEVEL = 1
"""zlib's level: 100 MB/s, to about a third of the size."""

TABLES = """
CREATE TABLE groups (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at REAL NOT NULL,
    n INTEGER NOT NULL,
    ended INTEGER NOT NULL DEFAULT 0,
    outcome TEXT NOT NULL DEFAULT 'open',
    shelved_at REAL NOT NULL,
    kept TEXT,
    agent TEXT NOT NULL,
    client TEXT,
    run TEXT NOT NULL,
    group_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    model TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX groups_by_id ON groups (group_id, run);
CREATE INDEX groups_by_age ON groups (created_at, group_id);
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY,
    content INTEGER NOT NULL,
    state TEXT NOT NULL,
    blame TEXT,
    finish_reason TEXT,
    policy_version INTEGER NOT NULL,
    reward REAL,
    turns INTEGER NOT NULL,
    sampled_tokens INTEGER NOT NULL,
    run_s REAL NOT NULL,
    ended_at REAL NOT NULL
) STRICT;
CREATE TABLE summaries (id INTEGER PRIMARY KEY, summary BLOB NOT NULL) STRICT;
CREATE TABLE contents (id INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT;
CREATE TABLE requests (number INTEGER PRIMARY KEY, request BLOB NOT NULL) STRICT;
CREATE TABLE versions (
    run TEXT NOT NULL,
    version INTEGER NOT NULL,
    agent TEXT NOT NULL,
    counts BLOB NOT NULL,
    PRIMARY KEY (run, version, agent)
) STRICT, WITHOUT ROWID;
CREATE TABLE totals (
    contents INTEGER NOT NULL,
    uptime_s REAL NOT NULL,
    evicted_until REAL NOT NULL
) STRICT;
INSERT INTO totals VALUES (0, 0.0, 0.0);
"""
"""`rollouts` and `groups` are narrow, since lists scan them; large values are looked up by number.
A rollout's `id` combines its group's number and its index. `summaries` are whole rows of lists, as
JSON; `rollouts` repeats what lists filter by and what rows of groups need. `shelved_at` is the
service's uptime, other times are Unix times. `summaries`, `contents` (whole rollouts as packed
JSON) and `requests` (submitted groups) are compressed; `totals.contents` is the size of the last
two in bytes. `versions` has the counts of each policy version as JSON (`training.VersionCounts`),
which stay when rows are evicted. `totals.evicted_until` is the creation time of the newest group
whose rows were evicted."""


class ContentState(IntEnum):
    NEVER = 0
    """Not chosen to be kept."""
    HERE = 1
    EVICTED = 2
    AWAITED = 3
    """Still to be copied from the journal."""


def within(number: int) -> tuple[int, int]:
    """Returns the range of a group's row ids, end excluded."""
    return number * STRIDE, (number + 1) * STRIDE


def compressed(content: bytes) -> bytes:
    return zlib.compress(content, LEVEL)


def expanded(content: bytes) -> bytes:
    return zlib.decompress(content)


def uptime(db: sqlite3.Connection) -> float:
    (seconds,) = db.execute("SELECT uptime_s FROM totals").fetchone()
    return float(seconds)


def keep_uptime(db: sqlite3.Connection, uptime_s: float) -> None:
    db.execute("UPDATE totals SET uptime_s = ?", (uptime_s,))
