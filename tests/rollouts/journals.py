"""A journal's file as another process reads it."""

import sqlite3
from contextlib import closing
from pathlib import Path

ROLLOUTS = """
SELECT groups.group_id || '.' || (rollouts.id % 4096), rollouts.state
FROM rollouts JOIN groups ON groups.number = rollouts.id / 4096
"""


def rollout_states(path: Path) -> list[tuple[str, str | None]]:
    """Returns ids and states of rollouts that were begun and not forgotten."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute(ROLLOUTS).fetchall()
