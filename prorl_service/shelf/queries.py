"""Queries of the shelf in SQL: filtered lists, page by page, and single rollouts.

Plain functions on the reader's connection. A list visits groups in order, and their
rollouts, until it has enough. So filters need no indexes of their own; the rarest match costs one
visit to each narrow row. Groups of the same id in several runs are told apart by the run.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from prorl_service.schemas import Group
from prorl_service.schemas.views import (
    GroupOutcome,
    GroupRow,
    KeptFor,
    RolloutRow,
    RolloutSort,
    RowFilter,
)
from prorl_service.shelf import search
from prorl_service.shelf.rows import FIGURES, GroupMember, Key, globbed, group_row
from prorl_service.shelf.tables import STRIDE, ContentState, expanded, within

INSIDE = f"r.id >= g.number * {STRIDE} AND r.id < (g.number + 1) * {STRIDE}"
_HERE = (ContentState.HERE, ContentState.AWAITED)
_INDICES = frozenset(map(str, range(STRIDE)))


_MEAN = f"(SELECT avg(r.reward) FROM rollouts r WHERE {INSIDE})"
_OF_GROUP = ("group_id", "run", "task_id", "agent", "client", "n", "created_at", "kept_for")


@dataclass(slots=True)
class Where:
    """Conditions joined by AND, with the values of their question marks."""

    conditions: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, condition: str, *values: Any) -> None:
        self.conditions.append(condition)
        self.values += values

    def add_any(self, expression: str, values: Sequence[Any]) -> None:
        marks = ", ".join("?" * len(values))
        self.add(f"{expression} IN ({marks})", *values)

    def __str__(self) -> str:
        return " AND ".join(f"({one})" for one in self.conditions) or "1"


# --- lists --------------------------------------------------------------------------------------


BY_AGE = {
    RolloutSort.NEWEST: "g.created_at DESC, g.group_id DESC, r.id",
    RolloutSort.OLDEST: "g.created_at, g.group_id DESC, r.id",
}


def _order(sort: RolloutSort) -> str:
    if sort in BY_AGE:
        return BY_AGE[sort]
    column, is_descending = FIGURES[sort]
    return f"r.{column} {'DESC' if is_descending else 'ASC'}, r.id DESC"


def rollouts(
    db: sqlite3.Connection,
    wanted: RowFilter,
    after: Key | None,
    limit: int,
    sort: RolloutSort = RolloutSort.NEWEST,
) -> list[RolloutRow]:
    """Returns rows in the order of `sort`, with excerpts if a text is wanted. `after`: a place in
    the lists' own order, `NEWEST`."""
    where = _of_listed(db, wanted)
    if sort in (RolloutSort.BEST, RolloutSort.WORST):
        where.add("r.reward IS NOT NULL")
    if after is not None:
        place = (after.created_at, after.group_id)
        where.add("(g.created_at, g.group_id) <= (?, ?)", *place)
        where.add(
            f"(g.created_at, g.group_id) <> (?, ?) OR r.id % {STRIDE} > ?", *place, after.index
        )
    # CROSS JOIN makes SQLite visit groups first, in order, so that it need not sort.
    query = (
        f"SELECT r.id, r.content, g.kept FROM groups g CROSS JOIN rollouts r ON {INSIDE}"
        f" WHERE {where} ORDER BY {_order(sort)} LIMIT ?"
    )
    found = db.execute(query, (*where.values, limit)).fetchall()
    return [_row(db, row_id, content, kept, wanted.text) for row_id, content, kept in found]


def count(db: sqlite3.Connection, wanted: RowFilter) -> int:
    """Returns the number of rollouts that match."""
    where = _of_listed(db, wanted)
    query = f"SELECT count(*) FROM groups g CROSS JOIN rollouts r ON {INSIDE} WHERE {where}"
    (found,) = db.execute(query, where.values).fetchone()
    return int(found)


def _of_listed(db: sqlite3.Connection, wanted: RowFilter) -> Where:
    """Returns all conditions of a list of rollouts."""
    where = of_groups(wanted)
    _of_rollouts(db, where, wanted)
    if wanted.reward_min is not None:
        where.add("r.reward >= ?", wanted.reward_min)
    if wanted.reward_max is not None:
        where.add("r.reward <= ?", wanted.reward_max)
    return where


def _row(
    db: sqlite3.Connection, row_id: int, content: int, kept: str | None, text: str | None
) -> RolloutRow:
    """Looks the summary up. A sorting query would read those of rows that it drops, too."""
    query = "SELECT summary FROM summaries WHERE id = ?"
    (summary,) = db.execute(query, (row_id,)).fetchone()
    row = RolloutRow.model_validate_json(expanded(summary))
    row.has_content, row.kept_for = content in _HERE, None if kept is None else KeptFor(kept)
    row.excerpt = None if text is None else search.excerpt(db, row_id, text)
    return row


def groups(
    db: sqlite3.Connection,
    wanted: RowFilter,
    outcomes: Sequence[GroupOutcome],
    after: Key | None,
    limit: int,
) -> list[GroupRow]:
    """Returns rows after `after`, in the lists' order. `wanted` bounds the groups' mean rewards."""
    where, inside = of_groups(wanted), Where()
    if wanted.reward_min is not None:
        where.add(f"{_MEAN} >= ?", wanted.reward_min)
    if wanted.reward_max is not None:
        where.add(f"{_MEAN} <= ?", wanted.reward_max)
    if outcomes:
        where.add_any("g.outcome", outcomes)
    if after is not None:
        where.add("(g.created_at, g.group_id) < (?, ?)", after.created_at, after.group_id)
    _of_rollouts(db, inside, wanted)
    if inside.conditions:
        where.add(f"EXISTS (SELECT 1 FROM rollouts r WHERE {INSIDE} AND {inside})", *inside.values)
    query = (
        "SELECT g.number, g.group_id, g.run, g.task_id, g.agent, g.client, g.n,"
        " g.created_at, g.kept"
        f" FROM groups g WHERE {where} ORDER BY g.created_at DESC, g.group_id DESC LIMIT ?"
    )
    return [
        group_row(_members(db, number), **dict(zip(_OF_GROUP, facts, strict=True)))
        for number, *facts in db.execute(query, (*where.values, limit)).fetchall()
    ]


def _members(db: sqlite3.Connection, number: int) -> list[GroupMember]:
    query = (
        f"SELECT id % {STRIDE}, state, reward, blame, policy_version, turns, sampled_tokens,"
        f" ended_at, content IN ({ContentState.HERE}, {ContentState.AWAITED}) FROM rollouts"
        " WHERE id >= ? AND id < ?"
    )
    return [GroupMember(*columns) for columns in db.execute(query, within(number))]


def of_groups(wanted: RowFilter) -> Where:
    """Returns the conditions on groups."""
    where = Where()
    if wanted.run is not None:
        where.add("g.run = ?", wanted.run)
    for name in ("task_id", "group_id"):
        if (value := getattr(wanted, name)) is None:
            continue
        if "*" in value:
            where.add(f"g.{name} GLOB ?", globbed(value))
        else:  # found by the index
            where.add(f"g.{name} = ?", value)
    if wanted.agent:
        where.add_any("g.agent", wanted.agent)
    if wanted.client is not None:
        where.add("g.client = ?", wanted.client)
    if wanted.created_before is not None:
        where.add("g.created_at <= ?", wanted.created_before)
    return where


def _of_rollouts(db: sqlite3.Connection, where: Where, wanted: RowFilter) -> None:
    """Adds the conditions on rollouts, except those on rewards."""
    for name in ("state", "blame", "finish_reason"):
        if values := getattr(wanted, name):
            where.add_any(f"r.{name}", values)
    if wanted.policy_version is not None:
        where.add("r.policy_version = ?", wanted.policy_version)
    if wanted.text is not None:
        ids = search.row_ids(db, wanted.text)
        # With `+`, rows are visited in order: without it, each group would go through all ids.
        where.add(
            "r.content = ? AND +r.id IN (SELECT value FROM json_each(?))",
            ContentState.HERE,
            ids.decode(),
        )
    if wanted.ended_after is not None:
        where.add("r.ended_at >= ?", wanted.ended_after)


# --- single rollouts ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShelvedRollout:
    """A rollout on the shelf."""

    content: ContentState
    run: str
    model: str
    """Digest of its model's tokenizer."""
    packed: bytes | None
    """The whole rollout as packed JSON; like `request`, None unless it is `ContentState.HERE`."""
    request: bytes | None

    def group(self) -> Group:
        assert self.request is not None
        return Group.model_validate_json(self.request)


def find(
    db: sqlite3.Connection, rollout_id: str, run: str | None, own: str
) -> ShelvedRollout | None:
    """Finds a rollout of `run`, or, if None, of this service's `own` run, else of the latest."""
    group_id, _, index = rollout_id.rpartition(".")
    if index not in _INDICES:
        return None
    found = db.execute(
        "SELECT r.content, g.run, g.model, contents.content, request"
        f" FROM groups g JOIN rollouts r ON r.id = g.number * {STRIDE} + ?"
        " LEFT JOIN contents USING (id) LEFT JOIN requests USING (number)"
        " WHERE g.group_id = ? AND (? IS NULL OR g.run = ?)"
        " ORDER BY g.run = ? DESC, g.created_at DESC LIMIT 1",
        (int(index), group_id, run, run, own),
    ).fetchone()
    if found is None:
        return None
    content, of_run, model, *texts = found
    packed, request = (None if text is None else expanded(text) for text in texts)
    return ShelvedRollout(ContentState(content), of_run, model, packed, request)
