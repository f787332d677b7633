"""Queries of the shelf in SQL: filtered lists, page by page, and single rollouts.

Plain functions on the reader's connection. A list visits groups in order, and reads the rollouts of
those whose row says that they may match. So filters need no indexes of their own; the rarest match
costs one visit to each group. Groups of the same id in several runs are told apart by the run.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prorl_service.schemas import Blame, Figures, FinishReason, Group, Rollout, RolloutState
from prorl_service.schemas.numbers import MAX_SCORE
from prorl_service.schemas.views import GroupOutcome, GroupRow, KeptFor, RolloutRow, RowFilter
from prorl_service.shelf.rows import GroupFacts, Key, Member, Standing, group_row, row_of
from prorl_service.shelf.tables import BLAMES, OUTCOME, REASONS, STATES, STRIDE, Content, expanded

_INSIDE = f"r.id >= g.number * {STRIDE} AND r.id < (g.number + 1) * {STRIDE}"
_ROW = """
(SELECT name FROM names WHERE number = g.run), g.kept, r.reason, r.turns, r.sampled, r.segments,
r.model_s, r.tool_s, r.version, r.staleness, r.ended_at, r.content,
(SELECT summary FROM summaries WHERE id = r.id)
"""
_MEAN = f"""
CASE WHEN g.rewards AND abs(g.reward_sum / g.rewards) <= {MAX_SCORE}
    THEN g.reward_sum / g.rewards END
"""
"""A group's mean reward. NULL also for an older version's sum of rewards that are no scores."""
_GROUP = f"""
g.number, g.group_id, (SELECT name FROM names WHERE number = g.run), g.task_id,
(SELECT name FROM names WHERE number = g.agent), g.n,
{_MEAN}, g.created_at, g.kept
"""
_HERE = (Content.HERE, Content.AWAITED)
_INDICES = frozenset(map(str, range(STRIDE)))
_OUTCOME = f"CASE WHEN ended < n THEN '{GroupOutcome.OPEN}' ELSE {OUTCOME} END"


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


def rollouts(
    db: sqlite3.Connection, wanted: RowFilter, after: Key | None, limit: int
) -> list[RolloutRow]:
    """Returns rows after `after`, in the lists' order."""
    groups, inside = _of_groups(wanted), _of_rollouts(wanted)
    _narrow(groups, wanted)
    if wanted.reward_min is not None:
        groups.add("g.greatest_reward >= ?", wanted.reward_min)
        inside.add("r.reward >= ?", wanted.reward_min)
    if wanted.reward_max is not None:
        groups.add("g.least_reward <= ?", wanted.reward_max)
        inside.add("r.reward <= ?", wanted.reward_max)
    if after is not None:
        place = (after.created_at, after.group_id)
        groups.add("(g.created_at, g.group_id) <= (?, ?)", *place)
        inside.add(
            f"(g.created_at, g.group_id) <> (?, ?) OR r.id % {STRIDE} > ?", *place, after.index
        )
    # CROSS JOIN makes SQLite visit groups first, in order, so that it need not sort.
    query = (
        f"SELECT {_ROW} FROM groups g CROSS JOIN rollouts r ON {_INSIDE}"
        f" WHERE {groups} AND {inside}"
        " ORDER BY g.created_at DESC, g.group_id DESC, r.id LIMIT ?"
    )
    found = db.execute(query, (*groups.values, *inside.values, limit))
    return [_Row(*one).to_wire() for one in found]


def groups(
    db: sqlite3.Connection,
    wanted: RowFilter,
    outcomes: Sequence[GroupOutcome],
    after: Key | None,
    limit: int,
) -> list[GroupRow]:
    """Returns rows after `after`, in the lists' order. `wanted` bounds the groups' mean rewards."""
    where, inside = _of_groups(wanted), _of_rollouts(wanted)
    _narrow(where, wanted)
    if wanted.reward_min is not None:
        where.add(f"{_MEAN} >= ?", wanted.reward_min)
    if wanted.reward_max is not None:
        where.add(f"{_MEAN} <= ?", wanted.reward_max)
    if outcomes:
        where.add_any(_OUTCOME, [one.value for one in outcomes])
    if after is not None:
        where.add("(g.created_at, g.group_id) < (?, ?)", after.created_at, after.group_id)
    if inside.conditions:
        where.add(f"EXISTS (SELECT 1 FROM rollouts r WHERE {_INSIDE} AND {inside})", *inside.values)
    query = (
        f"SELECT {_GROUP} FROM groups g WHERE {where}"
        " ORDER BY g.created_at DESC, g.group_id DESC LIMIT ?"
    )
    found = db.execute(query, (*where.values, limit)).fetchall()
    return [_group(db, *one) for one in found]


def _of_groups(wanted: RowFilter) -> Where:
    where = Where()
    if wanted.run is not None:
        where.add("g.run = (SELECT number FROM names WHERE name = ?)", wanted.run)
    if wanted.agent:
        marks = ", ".join("?" * len(wanted.agent))
        where.add(f"g.agent IN (SELECT number FROM names WHERE name IN ({marks}))", *wanted.agent)
    if wanted.task_id is not None:
        where.add("g.task_id = ?", wanted.task_id)
    if wanted.group_id is not None:
        where.add("g.group_id = ?", wanted.group_id)
    return where


def _of_rollouts(wanted: RowFilter) -> Where:
    """Returns the conditions on rollouts, except those on rewards."""
    where = Where()
    if wanted.state:
        where.add_any("r.state", _codes(STATES, wanted.state))
    if wanted.blame:
        where.add_any("r.blame", _codes(BLAMES, wanted.blame))
    if wanted.finish_reason:
        where.add_any("r.reason", _codes(REASONS, wanted.finish_reason))
    if wanted.policy_version is not None:
        where.add("r.version = ?", wanted.policy_version)
    return where


def _narrow(where: Where, wanted: RowFilter) -> None:
    """Restricts `where` to groups that may have such a rollout."""
    if wanted.state:
        where.add("g.states & ?", _bits(STATES, wanted.state))
    if wanted.blame:
        where.add("g.blames & ?", _bits(BLAMES, wanted.blame))
    if wanted.finish_reason:
        where.add("g.reasons & ?", _bits(REASONS, wanted.finish_reason))
    if wanted.policy_version is not None:
        where.add("? BETWEEN g.least_version AND g.greatest_version", wanted.policy_version)


Codes = Sequence[RolloutState] | Sequence[Blame] | Sequence[FinishReason]


def _codes(known: Codes, wanted: Codes) -> list[int]:
    """Returns codes of the wanted values; states that are not terminal have none."""
    return [code for code, one in enumerate(known) if one in wanted]


def _bits(known: Codes, wanted: Codes) -> int:
    return sum(1 << code for code in _codes(known, wanted))


def _group(
    db: sqlite3.Connection,
    number: int,
    group_id: str,
    run: str,
    task_id: str,
    agent: str,
    n: int,
    mean_reward: float | None,
    created_at: float,
    kept: str | None,
) -> GroupRow:
    facts = GroupFacts(
        group_id=group_id,
        run=run,
        task_id=task_id,
        agent=agent,
        n=n,
        mean_reward=mean_reward,
        created_at=created_at,
        kept_for=None if kept is None else KeptFor(kept),
    )
    first = number * STRIDE
    found = db.execute(
        "SELECT id, state, reward, blame, version, turns, sampled, ended_at, content FROM rollouts"
        " WHERE id >= ? AND id < ?",
        (first, first + STRIDE),
    )
    members = [
        Member(
            row_id - first,
            STATES[state],
            reward,
            None if blame is None else BLAMES[blame],
            version,
            turns,
            sampled,
            ended_at,
            content in _HERE,
        )
        for row_id, state, reward, blame, version, turns, sampled, ended_at, content in found
    ]
    return group_row(facts, members)


class _Row(NamedTuple):
    """The columns that `_ROW` selects."""

    run: str
    kept: str | None
    reason: int | None
    turns: int
    sampled: int
    segments: int
    model_s: float
    tool_s: float
    version: int
    staleness: int | None
    ended_at: float
    content: int
    summary: bytes

    def to_wire(self) -> RolloutRow:
        reason = None if self.reason is None else REASONS[self.reason]
        return row_of(
            Rollout.model_validate_json(expanded(self.summary)),
            Figures(
                finish_reason=reason,
                turns=self.turns,
                sampled_tokens=self.sampled,
                segments=self.segments,
                model_s=self.model_s,
                tool_s=self.tool_s,
            ),
            Standing(
                run=self.run,
                has_content=self.content in _HERE,
                kept_for=None if self.kept is None else KeptFor(self.kept),
                ended_at=self.ended_at,
                policy_version=self.version,
                staleness=self.staleness,
            ),
        )


# --- single rollouts ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """A rollout on the shelf."""

    content: Content
    run: str
    model: str
    """Digest of its model's tokenizer."""
    packed: bytes | None
    """The whole rollout as packed JSON; like `request`, None unless it is `Content.HERE`."""
    request: bytes | None

    def group(self) -> Group:
        assert self.request is not None
        return Group.model_validate_json(self.request)


def find(db: sqlite3.Connection, rollout_id: str, run: str | None, own: str) -> Found | None:
    """Finds a rollout of `run`, or, if None, of this service's `own` run, else of the latest."""
    group_id, _, index = rollout_id.rpartition(".")
    if index not in _INDICES:
        return None
    found = db.execute(
        "SELECT r.id, r.content, g.number, names.name,"
        " (SELECT name FROM names WHERE number = g.model)"
        f" FROM groups g JOIN rollouts r ON r.id = g.number * {STRIDE} + ?"
        " JOIN names ON names.number = g.run"
        " WHERE g.group_id = ? AND (? IS NULL OR names.name = ?)"
        " ORDER BY names.name = ? DESC, g.created_at DESC LIMIT 1",
        (int(index), group_id, run, run, own),
    ).fetchone()
    if found is None:
        return None
    row_id, content, number, of_run, model = found
    packed = db.execute("SELECT content FROM contents WHERE id = ?", (row_id,)).fetchone()
    request = db.execute("SELECT request FROM requests WHERE number = ?", (number,)).fetchone()
    return Found(
        Content(content),
        of_run,
        model,
        None if packed is None else expanded(packed[0]),
        None if request is None else expanded(request[0]),
    )
