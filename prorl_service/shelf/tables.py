"""The shelf's tables and the encodings in them: codes, bit sets and compressed text.

Statements are in `ended_rows`, `contents` (whole rollouts, eviction), and `queries` and `training`
(reads for people).
"""

import sqlite3
import zlib
from enum import IntEnum

from prorl_service.schemas import Blame, FinishReason, RolloutState
from prorl_service.schemas.views import GroupOutcome

APPLICATION_ID = 0x50525348
VERSION = 1
"""Version of the tables. A shelf of another version is moved aside."""
STRIDE = 4096
"""Row ids reserved for each group; at least `schemas.MAX_GROUP_SIZE`."""
LEVEL = 1
"""zlib's level: 100 MB/s, to about a third of the size."""

STATES = (RolloutState.DONE, RolloutState.FAILED, RolloutState.CANCELLED)
BLAMES = tuple(Blame)
REASONS = tuple(FinishReason)

TABLES = """
CREATE TABLE names (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE groups (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at REAL NOT NULL,
    run INTEGER NOT NULL,
    agent INTEGER NOT NULL,
    model INTEGER NOT NULL,
    n INTEGER NOT NULL,
    ended INTEGER NOT NULL DEFAULT 0,
    ended_at REAL NOT NULL,
    shelved_at REAL NOT NULL,
    states INTEGER NOT NULL DEFAULT 0,
    blames INTEGER NOT NULL DEFAULT 0,
    reasons INTEGER NOT NULL DEFAULT 0,
    least_version INTEGER NOT NULL,
    greatest_version INTEGER NOT NULL,
    rewards INTEGER NOT NULL DEFAULT 0,
    reward_sum REAL NOT NULL DEFAULT 0,
    least_reward REAL,
    greatest_reward REAL,
    kept TEXT,
    group_id TEXT NOT NULL,
    task_id TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX groups_by_id ON groups (group_id, run);
CREATE INDEX groups_by_age ON groups (created_at, group_id);
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    blame INTEGER,
    reason INTEGER,
    version INTEGER NOT NULL,
    reward REAL,
    staleness INTEGER,
    turns INTEGER NOT NULL,
    sampled INTEGER NOT NULL,
    segments INTEGER NOT NULL,
    content INTEGER NOT NULL,
    ended_at REAL NOT NULL,
    model_s REAL NOT NULL,
    tool_s REAL NOT NULL
) STRICT;
CREATE TABLE summaries (id INTEGER PRIMARY KEY, summary BLOB NOT NULL) STRICT;
CREATE TABLE contents (id INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT;
CREATE TABLE requests (number INTEGER PRIMARY KEY, request BLOB NOT NULL) STRICT;
CREATE TABLE tallies (
    run INTEGER NOT NULL,
    version INTEGER NOT NULL,
    agent INTEGER NOT NULL,
    state INTEGER NOT NULL,
    blame INTEGER NOT NULL,
    reason INTEGER NOT NULL,
    rollouts INTEGER NOT NULL,
    rewards INTEGER NOT NULL,
    reward_sum REAL NOT NULL,
    successes INTEGER NOT NULL,
    played INTEGER NOT NULL,
    turns INTEGER NOT NULL,
    sampled INTEGER NOT NULL,
    stale INTEGER NOT NULL,
    staleness INTEGER NOT NULL,
    most_stale INTEGER NOT NULL,
    first_end REAL NOT NULL,
    last_end REAL NOT NULL,
    PRIMARY KEY (run, version, agent, state, blame, reason)
) STRICT, WITHOUT ROWID;
CREATE TABLE outcomes (
    run INTEGER NOT NULL,
    version INTEGER NOT NULL,
    agent INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    groups INTEGER NOT NULL,
    PRIMARY KEY (run, version, agent, outcome)
) STRICT, WITHOUT ROWID;
CREATE TABLE totals (
    contents INTEGER NOT NULL,
    uptime_s REAL NOT NULL,
    evicted_until REAL NOT NULL
) STRICT;
INSERT INTO totals VALUES (0, 0.0, 0.0);
"""
"""`rollouts` and `groups` are narrow, since lists scan them; large values are looked up by number.
A rollout's `id` combines its group's number and its index. `states`, `blames` and `reasons` are bit
sets over the group's ended rollouts; with the extremes they tell which groups a list can skip.
`shelved_at` is the service's uptime, other times are Unix times. `names` spells out runs, agents
and models. `summaries`, `contents` (whole rollouts as packed JSON) and `requests` (submitted
groups) are compressed; `totals.contents` is the size of the last two in bytes. Rollouts are counted
in `tallies`, whole groups in `outcomes`, by policy version; counts stay when rows are evicted.
`played` counts rollouts that sampled, `stale` those with a staleness; -1 stands for no blame and no
reason. `totals.evicted_until` is the creation time of the newest group whose rows were evicted."""


class Content(IntEnum):
    NEVER = 0
    """Not chosen to be kept."""
    HERE = 1
    EVICTED = 2
    AWAITED = 3
    """Still to be copied from the journal."""


OUTCOME = f"""
CASE WHEN rewards = 0 THEN '{GroupOutcome.UNSCORED}'
    WHEN least_reward < greatest_reward THEN '{GroupOutcome.INFORMATIVE}'
    WHEN least_reward = 0 THEN '{GroupOutcome.ALL_ZERO}'
    WHEN least_reward = 1 THEN '{GroupOutcome.ALL_ONE}'
    ELSE '{GroupOutcome.ALL_EQUAL}' END
"""
"""SQL expression for the outcome of a whole group, over the columns of `groups`."""


def within(number: int) -> tuple[int, int]:
    """Returns the range of a group's row ids, end excluded."""
    return number * STRIDE, (number + 1) * STRIDE


def compressed(content: bytes) -> bytes:
    return zlib.compress(content, LEVEL)


def expanded(content: bytes) -> bytes:
    return zlib.decompress(content)


def name(db: sqlite3.Connection, text: str) -> int:
    """Returns the number of `text`, and adds it if it is new."""
    found = db.execute("SELECT number FROM names WHERE name = ?", (text,)).fetchone()
    if found is None:
        db.execute("INSERT INTO names (name) VALUES (?)", (text,))
        return name(db, text)
    return int(found[0])


def uptime(db: sqlite3.Connection) -> float:
    (seconds,) = db.execute("SELECT uptime_s FROM totals").fetchone()
    return float(seconds)


def keep_uptime(db: sqlite3.Connection, uptime_s: float) -> None:
    db.execute("UPDATE totals SET uptime_s = ?", (uptime_s,))
