"""Results that another service holds: the journal has references in their place.

A reference names the service; a front knows its address. Knows nothing of how to fetch a result.
Each function of a connection is to be run by the journal, inside a transaction.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import orjson

from prorl_service.rollouts.journal import tables
from prorl_service.rollouts.journal.seals import opened
from prorl_service.rollouts.journal.tables import ROW_BYTES, STRIDE, UnfinishedGroup
from prorl_service.schemas import TERMINAL_STATES, RolloutState

START = b'{"held_by":'
MAX_BYTES = 2048
"""Size below which an answer may be a reference: names of files have up to 255 bytes."""


def reference(service: str) -> bytes:
    """`service`: its name."""
    return START + orjson.dumps(service) + b"}"


def holder(answer: bytes) -> str | None:
    """Returns the service that holds the result; None if `answer` is the rollout itself."""
    return str(orjson.loads(answer)["held_by"]) if answer.startswith(START) else None


def holders(db: sqlite3.Connection, group_ids: Iterable[str]) -> dict[str, set[str]]:
    """Returns the groups that each service holds results of."""
    groups: dict[str, set[str]] = {}
    for group_id in group_ids:
        for held in _held(db, tables.number_of(db, group_id)):
            groups.setdefault(held.service, set()).add(group_id)
    return groups


@dataclass(frozen=True, slots=True)
class Reopened:
    group: UnfinishedGroup
    states: Counter[str]
    """Number of its rollouts that have to end again, by the state that they had."""


def reopen(
    group_id: str, is_lost: Callable[[str], bool]
) -> Callable[[sqlite3.Connection], Reopened | None]:
    """Has rollouts of an ended group end again: those whose results are lost with their service.
    The result is None if there are none."""

    def write(db: sqlite3.Connection) -> Reopened | None:
        number = tables.number_of(db, group_id)
        held = (one for one in _held(db, number) if one.state != RolloutState.CANCELLED)
        lost = [one for one in held if is_lost(one.service)]
        if number is None or not lost or not _has_ended(db, number):
            return None
        states = Counter(one.state for one in lost)
        _reopen(db, number, states, sum(one.bytes for one in lost))
        for one in lost:
            db.execute(
                "UPDATE rollouts SET state = NULL, summary = NULL, answer = NULL WHERE id = ?",
                (one.row_id,),
            )
        return Reopened(_unfinished(db, number, group_id), states)

    return write


@dataclass(frozen=True, slots=True)
class _Held:
    row_id: int
    state: str
    service: str
    bytes: int


def _held(db: sqlite3.Connection, number: int | None) -> list[_Held]:
    if number is None:
        return []
    first = number * STRIDE
    found = db.execute(
        "SELECT id, state, length(summary) + length(answer), answer FROM rollouts"
        " WHERE id >= ? AND id < ? AND length(answer) < ?",
        (first, first + STRIDE, MAX_BYTES),
    )
    return [
        _Held(row_id, state, service, size + ROW_BYTES)
        for row_id, state, size, answer in found
        if (service := holder(opened(answer, row_id))) is not None
    ]


def _has_ended(db: sqlite3.Connection, number: int) -> bool:
    query = "SELECT 1 FROM groups WHERE number = ? AND ended_at IS NOT NULL"
    return db.execute(query, (number,)).fetchone() is not None


def _reopen(db: sqlite3.Connection, number: int, states: Counter[str], size: int) -> None:
    ends = sorted(state.value for state in TERMINAL_STATES)
    counts = "".join(f", {one} = {one} - {states[one]}" for one in ends)
    db.execute(
        "UPDATE totals SET bytes = bytes - (SELECT bytes FROM groups WHERE number = ?)", (number,)
    )
    db.execute(
        f"UPDATE groups SET unended = ?, ended_at = NULL, bytes = bytes - ?{counts}"
        " WHERE number = ?",
        (states.total(), size, number),
    )


def _unfinished(db: sqlite3.Connection, number: int, group_id: str) -> UnfinishedGroup:
    request, created_at = db.execute(
        "SELECT request, created_at FROM groups JOIN requests USING (number) WHERE number = ?",
        (number,),
    ).fetchone()
    return tables.with_rollouts(db, number, group_id, UnfinishedGroup(request, created_at))
