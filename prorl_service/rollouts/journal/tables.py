"""The journal's tables, and every statement that reads or writes them.

Plain functions of a connection, each to be run inside a transaction of the caller, who also handles
`sqlite3.Error`.
"""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import NonNegativeFloat, PositiveFloat
from pydantic import dataclasses as validated

from prorl_service.errors import ResultLost
from prorl_service.rollouts.journal.seals import losing_damaged, opened, sealed
from prorl_service.schemas import TERMINAL_STATES, Figures, RolloutState

VERSION = 5
"""Version of the tables and of the JSON in them: increased when older code would misread a journal,
or newer code an older one. Each version has a step in `file.MIGRATIONS`."""
STRIDE = 4096
"""Distance between the rollouts' ids of two groups; at least `schemas.MAX_GROUP_SIZE`."""
ROW_BYTES = 512
"""Bytes that a group or a rollout takes in addition to its content, roughly."""
EXPIRED_AT_ONCE = 256
"""Most groups that are forgotten to make room for one that ended."""
VACUUM_PAGES = 16

TABLES = Path(__file__).with_name("tables.sql").read_text()
"""`groups` has small rows only; large content, in `requests` and `rollouts`, is found by a group's
number. A group without a row there is forgotten, immediately and for all readers; its content is
deleted later: `garbage` has the numbers. A rollout's `id` combines its group's number and its
index; it has a row once it was begun, and a `state` once it has ended. `answer` is the whole
rollout as packed JSON; `summary` is the rollout without trajectory and report; both have a seal
(`seals`). `turns` has whole turns of rollouts that have not ended, `continuations` what they do
next, `outside_calls` what their tools may have done twice then (`resume.rows`). Large columns come
last, so that columns before them are read without them. `ended_at` is the service's uptime,
`created_at` Unix time. A candidate at its end has no request any more. `totals.bytes` is the size
of all ended groups, `uptime_s` the total uptime of this journal's services. `placements` says where
a front has its groups. `facts` has whatever else a restarted service must know."""

_ENDS = sorted(state.value for state in TERMINAL_STATES)
_COUNTS = ", ".join(_ENDS)


@dataclass(frozen=True, slots=True)
class AcceptedRow:
    group_id: str
    n: int
    request: bytes = field(repr=False)
    created_at: float


@dataclass(frozen=True, slots=True)
class EndedRow:
    rollout_id: str
    group_id: str
    attempt: int
    state: RolloutState
    summary: bytes = field(repr=False)
    answer: bytes = field(repr=False)
    figures: Figures = field(default_factory=Figures)
    """Figures for followers; not written here."""
    ended_at: float = field(default_factory=time.time)
    """Unix time in seconds; not written here."""
    owner: str | None = None
    """Front that forwarded the group; not written here."""
    client: str | None = None
    """Submitter of the group, or its training; not written here."""
    group_size: int | None = None
    """Number of rollouts of its group, of which a front may have given only some; None: as many as
    are in the journal. Not written here."""


@dataclass(frozen=True, slots=True)
class UnfinishedGroup:
    request: bytes = field(repr=False)
    created_at: float
    attempts: dict[str, int] = field(default_factory=dict)
    """Attempts of the rollouts that were begun and have not ended."""
    saved_attempts: dict[str, int] = field(default_factory=dict)
    """Attempts in which those with kept turns wrote their last."""
    ended: set[str] = field(default_factory=set)


@validated.dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Limits on unacknowledged results. The newest is kept whatever its size."""

    keep_mb: PositiveFloat = 4096
    """Maximum size of unacknowledged results, in MiB."""
    keep_hours: NonNegativeFloat = 168
    """Maximum age of unacknowledged results, in hours of the service's uptime."""

    @property
    def keep_bytes(self) -> int:
        return round(self.keep_mb * 2**20)

    @property
    def keep_s(self) -> float:
        return self.keep_hours * 3600


# --- writing ------------------------------------------------------------------------------------


def accept(db: sqlite3.Connection, groups: Iterable[AcceptedRow]) -> bool:
    """Writes all of them; or none, and returns False, if one is there already."""
    groups = list(groups)
    if any(number_of(db, group.group_id) for group in groups):
        return False
    for one in groups:
        number = db.execute(
            "INSERT INTO groups (group_id, unended, bytes, created_at) VALUES (?, ?, ?, ?)",
            (one.group_id, one.n, len(one.request) + ROW_BYTES, one.created_at),
        ).lastrowid
        db.execute("INSERT INTO requests VALUES (?, ?)", (number, one.request))
    return True


def begin(db: sqlite3.Connection, rollout_id: str, attempt: int) -> None:
    db.execute(
        "INSERT INTO rollouts (id, attempt) VALUES (?, ?)"
        " ON CONFLICT DO UPDATE SET attempt = excluded.attempt",
        (_own_row_id(db, rollout_id), attempt),
    )


def end(
    db: sqlite3.Connection, row: EndedRow, retention: Retention, uptime_s: float
) -> Counter[str]:
    """Writes an ended rollout. If it is the last of its group, forgets others; returns as
    `forget`."""
    own_id = _own_row_id(db, row.rollout_id)
    for table in ("turns", "continuations", "outside_calls"):
        db.execute(f"DELETE FROM {table} WHERE rollout = ?", (own_id,))
    db.execute(
        "INSERT OR REPLACE INTO rollouts VALUES (?, ?, ?, ?, ?)",
        (own_id, row.attempt, row.state, sealed(row.summary, own_id), sealed(row.answer, own_id)),
    )
    ended_at, size = db.execute(
        "UPDATE groups SET unended = unended - 1, bytes = bytes + ?,"
        f" {row.state.value} = {row.state.value} + 1,"
        " ended_at = CASE unended WHEN 1 THEN ? END WHERE group_id = ? RETURNING ended_at, bytes",
        (len(row.summary) + len(row.answer) + ROW_BYTES, uptime_s, row.group_id),
    ).fetchone()
    if ended_at is None:
        return Counter()
    db.execute("UPDATE totals SET bytes = bytes + ?", (size,))
    keep_uptime(db, uptime_s)
    expired = _expired(db, retention, uptime_s)
    return forget(db, [one for one in expired if one != row.group_id])


def forget(db: sqlite3.Connection, group_ids: Iterable[str]) -> Counter[str]:
    """Forgets those that have ended. Returns how many of their rollouts were in which state."""
    states = Counter[str]()
    for group_id in group_ids:
        found = db.execute(
            "DELETE FROM groups WHERE group_id = ? AND ended_at IS NOT NULL"
            f" RETURNING number, bytes, {_COUNTS}",
            (group_id,),
        ).fetchone()
        if found is not None:
            number, size, *counts = found
            db.execute("UPDATE totals SET bytes = bytes - ?", (size,))
            db.execute("INSERT INTO garbage VALUES (?)", (number,))
            states.update(dict(zip(_ENDS, counts, strict=True)))
    return +states


def _own_row_id(db: sqlite3.Connection, rollout_id: str) -> int:
    found = row_id(db, rollout_id)
    if found is None:
        raise LookupError(f"{rollout_id} does not belong to an accepted group")
    return found


def remember(db: sqlite3.Connection, name: str, value: bytes) -> None:
    db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


def keep_uptime(db: sqlite3.Connection, uptime_s: float) -> None:
    db.execute("UPDATE totals SET uptime_s = ?", (uptime_s,))


def _expired(db: sqlite3.Connection, retention: Retention, uptime_s: float) -> list[str]:
    (size,) = db.execute("SELECT bytes FROM totals").fetchone()
    excess = size - retention.keep_bytes
    oldest = uptime_s - retention.keep_s
    group_ids = []
    for group_id, ended_at, size in db.execute(
        "SELECT group_id, ended_at, bytes FROM groups WHERE ended_at IS NOT NULL"
        f" ORDER BY ended_at, number LIMIT {EXPIRED_AT_ONCE}"
    ):
        if excess <= 0 and ended_at >= oldest:
            break
        excess -= size
        group_ids.append(group_id)
    return group_ids


# --- tidying ------------------------------------------------------------------------------------


def has_garbage(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM garbage LIMIT 1").fetchone() is not None


def delete_garbage(db: sqlite3.Connection, is_over: Callable[[], bool]) -> bool:
    """Deletes row by row until `is_over`. Returns False if nothing is left."""
    while (found := db.execute("SELECT number FROM garbage LIMIT 1").fetchone()) is not None:
        (number,) = found
        first = number * STRIDE
        within = (first, first + STRIDE)
        for row in db.execute(
            "SELECT id FROM rollouts WHERE id >= ? AND id < ?", within
        ).fetchall():
            db.execute("DELETE FROM rollouts WHERE id = ?", row)
            if is_over():
                return True
        db.execute("DELETE FROM requests WHERE number = ?", found)
        db.execute("DELETE FROM garbage WHERE number = ?", found)
        if is_over():
            return True
    return False


def leave_garbage(db: sqlite3.Connection) -> None:
    """Forgets what `delete_garbage` would delete first: its pages are damaged, and stay."""
    db.execute("DELETE FROM garbage WHERE number = (SELECT number FROM garbage LIMIT 1)")


def free_pages(db: sqlite3.Connection) -> int:
    (count,) = db.execute("PRAGMA freelist_count").fetchone()
    return int(count)


def give_room_back(db: sqlite3.Connection, is_over: Callable[[], bool]) -> bool:
    """Truncates free pages at the end of the file, until `is_over`. Returns False if nothing is
    left."""
    while free_pages(db):
        db.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
        if is_over():
            return True
    return False


# --- reading ------------------------------------------------------------------------------------


def find(db: sqlite3.Connection, group_ids: Iterable[str]) -> dict[str, bytes]:
    """Returns the requests of known groups, by id."""
    statement = "SELECT request FROM groups JOIN requests USING (number) WHERE group_id = ?"
    found = ((one, db.execute(statement, (one,)).fetchone()) for one in group_ids)
    return {group_id: row[0] for group_id, row in found if row is not None}


def known(db: sqlite3.Connection, group_ids: Iterable[str]) -> set[str]:
    """Those that are there."""
    return {group_id for group_id in group_ids if number_of(db, group_id) is not None}


def summaries(db: sqlite3.Connection, rollout_ids: Iterable[str]) -> dict[str, bytes | ResultLost]:
    """Returns the summaries of ended rollouts, by id, or why one cannot be read."""
    found: dict[str, bytes | ResultLost] = {}
    for rollout_id in rollout_ids:
        try:
            if (columns := _ended(db, rollout_id, "summary")) is not None:
                (found[rollout_id],) = columns
        except ResultLost as lost:
            found[rollout_id] = lost
    return found


def answer(db: sqlite3.Connection, rollout_id: str) -> tuple[bytes, bytes] | None:
    """Returns the summary and the whole rollout; None if it has not ended. Raises `ResultLost`."""
    columns = _ended(db, rollout_id, "summary, answer")
    return None if columns is None else (columns[0], columns[1])


def _ended(db: sqlite3.Connection, rollout_id: str, columns: str) -> list[bytes] | None:
    """Returns what was sealed of an ended rollout. Raises `ResultLost`."""
    with losing_damaged():
        own_id = row_id(db, rollout_id)
        if own_id is None:
            return None
        query = f"SELECT {columns} FROM rollouts WHERE id = ? AND state IS NOT NULL"
        found = db.execute(query, (own_id,)).fetchone()
        if found is not None:
            return [opened(stored, own_id) for stored in found]
        if _must_be_there(db, own_id):
            raise ResultLost.of("its row is gone")
        return None


def _must_be_there(db: sqlite3.Connection, own_id: int) -> bool:
    """Returns whether the group has ended, so that all its rollouts have rows."""
    number, index = divmod(own_id, STRIDE)
    query = (
        "SELECT 1 FROM groups WHERE number = ? AND ended_at IS NOT NULL"
        " AND ? < done + failed + cancelled"
    )
    return db.execute(query, (number, index)).fetchone() is not None


@dataclass(frozen=True, slots=True)
class Remains:
    """What can still be read about a result that is lost."""

    summary: bytes | None = None
    request: bytes | None = None


def remains(db: sqlite3.Connection, rollout_id: str) -> Remains:
    summary = summaries(db, [rollout_id]).get(rollout_id)
    group_id = rollout_id.rpartition(".")[0]
    try:
        with losing_damaged():
            request = find(db, [group_id]).get(group_id)
    except ResultLost:
        request = None
    return Remains(summary if isinstance(summary, bytes) else None, request)


def row_id(db: sqlite3.Connection, rollout_id: str) -> int | None:
    """Returns None if the id cannot be one of a known group."""
    group_id, _, index = rollout_id.rpartition(".")
    number = number_of(db, group_id)
    is_index = index.isascii() and index.isdigit() and str(int(index)) == index
    if number is None or not is_index or int(index) >= STRIDE:
        return None
    return number * STRIDE + int(index)


def number_of(db: sqlite3.Connection, group_id: str) -> int | None:
    """Returns None for an unknown group."""
    row = db.execute("SELECT number FROM groups WHERE group_id = ?", (group_id,)).fetchone()
    return None if row is None else row[0]


def recall(db: sqlite3.Connection, name: str) -> bytes | None:
    row = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return None if row is None else row[0]


def unfinished(db: sqlite3.Connection) -> list[UnfinishedGroup]:
    """Returns unfinished groups in the order in which they were accepted."""
    return [
        with_rollouts(db, number, group_id, UnfinishedGroup(request, created_at))
        for number, group_id, created_at, request in db.execute(
            "SELECT number, group_id, created_at, request FROM groups JOIN requests USING (number)"
            " WHERE ended_at IS NULL ORDER BY number"
        )
    ]


def with_rollouts(
    db: sqlite3.Connection, number: int, group_id: str, group: UnfinishedGroup
) -> UnfinishedGroup:
    """Adds what is known of the group's rollouts."""
    first = number * STRIDE
    within = (first, first + STRIDE)
    for own_id, attempt, state in db.execute(
        "SELECT id, attempt, state FROM rollouts WHERE id >= ? AND id < ?", within
    ):
        rollout_id = f"{group_id}.{own_id - first}"
        if state is None:
            group.attempts[rollout_id] = attempt
        else:
            group.ended.add(rollout_id)
    for own_id, attempt in db.execute(
        "SELECT rollout, attempt FROM continuations WHERE rollout >= ? AND rollout < ?", within
    ):
        group.saved_attempts[f"{group_id}.{own_id - first}"] = attempt
    return group


def count_ended(db: sqlite3.Connection) -> Counter[str]:
    sums = ", ".join(f"coalesce(sum({state}), 0)" for state in _ENDS)
    counts = db.execute(f"SELECT {sums} FROM groups").fetchone()
    return +Counter(dict(zip(_ENDS, counts, strict=True)))


def uptime(db: sqlite3.Connection) -> float:
    (seconds,) = db.execute("SELECT uptime_s FROM totals").fetchone()
    return float(seconds)
