"""The shelf's tables, and the statements that write them.

Plain functions of a connection, each to be run inside a transaction of the caller's. What raises
`sqlite3.Error` is the caller's to judge. Statements that read for people are in `queries`.
"""

import sqlite3
import zlib
from dataclasses import dataclass
from enum import IntEnum

from prorl_service.rollouts.figures import Figures
from prorl_service.rollouts.journal.tables import EndedRow
from prorl_service.schemas import Blame, ErrorInfo, FinishReason, Rollout, RolloutState
from prorl_service.schemas.views import KeptFor

APPLICATION_ID = 0x50525348
VERSION = 1
"""Raised when the tables change. A shelf of another version is moved aside."""
STRIDE = 4096
"""Distance between the rollouts' ids of two groups; at least `schemas.MAX_GROUP_SIZE`."""
LEVEL = 1
"""Of compression: 100 MB/s, to about a third."""

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
CREATE TABLE totals (contents INTEGER NOT NULL, uptime_s REAL NOT NULL) STRICT;
INSERT INTO totals VALUES (0, 0.0);
"""
"""`rollouts` and `groups` are narrow, for lists look at all of them: what is large is found by its
number. A rollout's `id` is its group's number and its index. `states`, `blames` and `reasons` are
sets of bits, of the group's ended rollouts; with the extremes they tell which groups a list need
not look into. `shelved_at` is the service's uptime, other times are Unix times. `names` spells out
runs, agents and models. `summaries`, `contents` (whole rollouts as packed JSON) and `requests`
(what was submitted) are compressed; `totals.contents` is what the last two take, in bytes."""


class Content(IntEnum):
    NEVER = 0
    """Not chosen."""
    HERE = 1
    EVICTED = 2
    AWAITED = 3
    """It is still to be copied from the journal."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An ended rollout, with what the shelf is told beside its row."""

    rollout: Rollout
    """Without trajectory and report."""
    figures: Figures
    ended_at: float
    version: int
    """Version that it counts for."""
    staleness: int | None
    summary: bytes

    @property
    def failure(self) -> ErrorInfo | None:
        """A cancelled one has not failed, though an error may say why it was cancelled."""
        return self.rollout.error if self.rollout.state is RolloutState.FAILED else None

    @property
    def blame(self) -> Blame | None:
        return self.failure.blame if self.failure is not None else None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a group is on the shelf."""

    number: int
    kept: KeptFor | None

    def row_id(self, index: int) -> int:
        return self.number * STRIDE + index


def ended_of(row: EndedRow, service_version: int) -> Ended:
    """`service_version`: the newest when it ended."""
    rollout = Rollout.model_validate_json(row.summary)
    newest, oldest = rollout.newest_policy_version, rollout.oldest_policy_version
    return Ended(
        rollout,
        row.figures,
        row.ended_at,
        service_version if newest is None else newest,
        None if oldest is None else max(0, service_version - oldest),
        row.summary,
    )


def compressed(content: bytes) -> bytes:
    return zlib.compress(content, LEVEL)


def expanded(content: bytes) -> bytes:
    return zlib.decompress(content)


def name(db: sqlite3.Connection, text: str) -> int:
    """Its number."""
    found = db.execute("SELECT number FROM names WHERE name = ?", (text,)).fetchone()
    if found is None:
        db.execute("INSERT INTO names (name) VALUES (?)", (text,))
        return name(db, text)
    return int(found[0])


# --- index rows ---------------------------------------------------------------------------------


def place(db: sqlite3.Connection, group_id: str, run: int) -> tuple[Place, float] | None:
    """And when the group was created. None: nothing of it is here."""
    found = db.execute(
        "SELECT number, kept, created_at FROM groups WHERE group_id = ? AND run = ?",
        (group_id, run),
    ).fetchone()
    if found is None:
        return None
    number, kept, created_at = found
    return Place(number, KeptFor(kept) if kept else None), created_at


def add_group(
    db: sqlite3.Connection, ended: Ended, run: int, model: str, n: int, shelved_at: float
) -> Place:
    rollout = ended.rollout
    number = db.execute(
        "INSERT INTO groups (created_at, run, agent, model, n, ended_at, shelved_at, least_version,"
        " greatest_version, group_id, task_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            rollout.created_at,
            run,
            name(db, rollout.agent),
            name(db, model),
            n,
            ended.ended_at,
            shelved_at,
            ended.version,
            ended.version,
            rollout.group_id,
            rollout.task_id,
        ),
    ).lastrowid
    assert number is not None
    return Place(number, None)


def has_rollout(db: sqlite3.Connection, row_id: int) -> bool:
    return db.execute("SELECT 1 FROM rollouts WHERE id = ?", (row_id,)).fetchone() is not None


def add_rollout(db: sqlite3.Connection, place: Place, ended: Ended) -> None:
    """Its content is `NEVER` here until more is said."""
    rollout, figures, row_id = ended.rollout, ended.figures, place.row_id(ended.rollout.index)
    codes = {
        "state": STATES.index(rollout.state),
        "blame": BLAMES.index(ended.blame) if ended.blame is not None else None,
        "reason": REASONS.index(figures.finish_reason) if figures.finish_reason else None,
    }
    db.execute(
        "INSERT INTO rollouts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row_id,
            *codes.values(),
            ended.version,
            rollout.reward,
            ended.staleness,
            figures.turns,
            figures.sampled_tokens,
            figures.segments,
            Content.NEVER,
            ended.ended_at,
            figures.model_s,
            figures.tool_s,
        ),
    )
    db.execute("INSERT INTO summaries VALUES (?, ?)", (row_id, compressed(ended.summary)))
    bits = {one: 0 if code is None else 1 << code for one, code in codes.items()}
    values = {"reward": rollout.reward, "version": ended.version, "ended_at": ended.ended_at}
    db.execute(_COUNT_IN, {"number": place.number, **bits, **values})


_COUNT_IN = """
UPDATE groups SET
    ended = ended + 1,
    ended_at = max(ended_at, :ended_at),
    states = states | :state,
    blames = blames | :blame,
    reasons = reasons | :reason,
    least_version = min(least_version, :version),
    greatest_version = max(greatest_version, :version),
    rewards = rewards + (:reward IS NOT NULL),
    reward_sum = reward_sum + coalesce(:reward, 0.0),
    least_reward = coalesce(min(coalesce(least_reward, :reward), :reward), least_reward),
    greatest_reward = coalesce(max(coalesce(greatest_reward, :reward), :reward), greatest_reward)
WHERE number = :number
"""


def keep(db: sqlite3.Connection, number: int, reason: KeptFor) -> None:
    db.execute("UPDATE groups SET kept = ? WHERE number = ?", (reason.value, number))


def without_content(db: sqlite3.Connection, number: int) -> list[int]:
    """Rows of the group's rollouts that nobody has asked to keep."""
    return [
        row_id
        for (row_id,) in db.execute(
            "SELECT id FROM rollouts WHERE id >= ? AND id < ? AND content = ?",
            (*_within(number), Content.NEVER),
        )
    ]


def awaited(db: sqlite3.Connection) -> list[int]:
    """Rows of rollouts whose content an earlier process has not copied."""
    query = "SELECT id FROM rollouts WHERE content = ?"
    return [row_id for (row_id,) in db.execute(query, (Content.AWAITED,))]


def firsts(db: sqlite3.Connection, run: int) -> dict[int, int]:
    """Groups that are kept as the first of their version, by version."""
    query = (
        "SELECT least_version, count(*) FROM groups WHERE kept = ? AND run = ?"
        " GROUP BY least_version"
    )
    return dict(db.execute(query, (KeptFor.FIRST.value, run)).fetchall())


# --- content ------------------------------------------------------------------------------------


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
        _within(number),
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
    within = _within(number)
    db.execute("DELETE FROM contents WHERE id >= ? AND id < ?", within)
    db.execute("DELETE FROM requests WHERE number = ?", (number,))
    db.execute(
        "UPDATE rollouts SET content = ? WHERE id >= ? AND id < ? AND content = ?",
        (Content.EVICTED, *within, Content.HERE),
    )


def remove_group(db: sqlite3.Connection, number: int) -> None:
    evict_content(db, number)
    within = _within(number)
    db.execute("DELETE FROM summaries WHERE id >= ? AND id < ?", within)
    db.execute("DELETE FROM rollouts WHERE id >= ? AND id < ?", within)
    db.execute("DELETE FROM groups WHERE number = ?", (number,))


def _within(number: int) -> tuple[int, int]:
    return number * STRIDE, (number + 1) * STRIDE


def uptime(db: sqlite3.Connection) -> float:
    (seconds,) = db.execute("SELECT uptime_s FROM totals").fetchone()
    return float(seconds)


def keep_uptime(db: sqlite3.Connection, uptime_s: float) -> None:
    db.execute("UPDATE totals SET uptime_s = ?", (uptime_s,))
