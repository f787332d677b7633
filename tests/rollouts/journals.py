"""Rows for a journal, with placeholders in place of JSON, and its file as others read it."""

import sqlite3
from contextlib import closing
from pathlib import Path

from prorl_service.rollouts.journal.tables import AcceptedRow, EndedRow
from prorl_service.schemas import RolloutState

ROLLOUTS = """
SELECT groups.group_id || '.' || (rollouts.id % 4096), rollouts.state
FROM rollouts JOIN groups ON groups.number = rollouts.id / 4096
"""


def rollout_states(path: Path) -> list[tuple[str, str | None]]:
    """Returns ids and states of rollouts that were begun and not forgotten."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute(ROLLOUTS).fetchall()


def accepted(group_id: str, n: int = 2) -> AcceptedRow:
    return AcceptedRow(group_id, n, b"{}", 1.0)


def ended(group_id: str, index: int = 0, size: int = 100) -> EndedRow:
    rollout_id = f"{group_id}.{index}"
    return EndedRow(rollout_id, group_id, 1, RolloutState.DONE, b"summary", b"x" * size)
