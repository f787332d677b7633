"""Statements on the samplers' tables in the journal. Plain functions of a connection, each to be
run inside a transaction of the caller, as in `rollouts.journal.tables`."""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prorl_service.sampling.candidates import Candidate
from prorl_service.sampling.filter import GroupState
from prorl_service.schemas import Group

AT_THEIR_END = (
    GroupState.GIVEN,
    GroupState.UNINFORMATIVE,
    GroupState.FAILED,
    GroupState.PASSED_OVER,
)


@dataclass(frozen=True, slots=True)
class CandidateRow:
    name: str
    task_id: str
    state: GroupState
    attempt: int
    begun_in: str | None
    oldest_version: int | None
    newest_version: int | None
    request: bytes | None

    @classmethod
    def of(cls, one: Candidate) -> "CandidateRow":
        is_at_end = one.state in AT_THEIR_END
        return cls(
            one.name,
            one.group.task.task_id,
            one.state,
            one.attempt,
            one.begun_in,
            one.oldest_version,
            one.newest_version,
            None if is_at_end else one.group.model_dump_json().encode(),
        )

    def candidate(self) -> Candidate:
        """Returns the candidate of a row that is not at its end."""
        assert self.request is not None
        group = Group.model_validate_json(self.request)
        candidate = Candidate(group, self.state, self.attempt, self.begun_in)
        if self.state is GroupState.INFORMATIVE:
            candidate.note_versions(self.oldest_version, self.newest_version)
        return candidate


def put(
    db: sqlite3.Connection, sampler_id: str, state: bytes, rows: Iterable[CandidateRow] = ()
) -> None:
    db.execute(
        "INSERT INTO samplers VALUES (?, ?)"
        " ON CONFLICT (sampler_id) DO UPDATE SET state = excluded.state",
        (sampler_id, state),
    )
    db.executemany(
        "INSERT INTO candidates (sampler_id, name, task_id, state, attempt, begun_in,"
        " oldest_version, newest_version, request) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (sampler_id, name) DO UPDATE SET state = excluded.state,"
        " attempt = excluded.attempt, begun_in = excluded.begun_in,"
        " oldest_version = excluded.oldest_version, newest_version = excluded.newest_version,"
        " request = excluded.request",
        [
            (
                *(sampler_id, row.name, row.task_id, row.state.value, row.attempt),
                *(row.begun_in, row.oldest_version, row.newest_version, row.request),
            )
            for row in rows
        ],
    )


def drop(db: sqlite3.Connection, sampler_id: str) -> None:
    for table in ("candidates", "samplers"):
        db.execute(f"DELETE FROM {table} WHERE sampler_id = ?", (sampler_id,))


def ended_groups(db: sqlite3.Connection, prefix: str) -> list[str]:
    """Returns the ended groups whose id begins with `prefix`, which ends with a colon."""
    rows = db.execute(
        "SELECT group_id FROM groups WHERE group_id >= ? AND group_id < ? AND ended_at IS NOT NULL",
        (prefix, prefix[:-1] + ";"),  # the next character
    )
    return [group_id for (group_id,) in rows]


def samplers(db: sqlite3.Connection) -> list[tuple[str, bytes]]:
    return db.execute("SELECT sampler_id, state FROM samplers").fetchall()


def candidates(db: sqlite3.Connection, sampler_id: str) -> Sequence[CandidateRow]:
    """Returns the candidates in the order in which they came."""
    rows = db.execute(
        "SELECT name, task_id, state, attempt, begun_in, oldest_version, newest_version, request"
        " FROM candidates WHERE sampler_id = ? ORDER BY number",
        (sampler_id,),
    )
    return [CandidateRow(name, task, GroupState(state), *rest) for name, task, state, *rest in rows]
