"""A journal as services of version 2 left it: their tables and the rows that their code wrote."""

import sqlite3
from pathlib import Path

TABLES = Path(__file__).with_suffix(".sql").read_text()

SAMPLER = b"""{"spec":{"filter":{"metric":"reward","min_std":0.0,"min_mean":null,"max_mean":null,
"lowest":null,"highest":null,"min_scored":2},"groups_at_once":null,"oversubscription":null,
"groups_ahead":0,"surplus":"carry","max_staleness":1,"defer_after":2,"deferred_every":8,
"lease_s":null},"draw":{"draw_id":"d","spec":{"target":2,"max_groups":null,"deadline_s":1800.0,
"policy_version":null},"state":"open","groups":[],"dropped":[],"finished":0},"dropped":[],
"opened_at":1763843000.5,"is_last":false,"tally":{"given":0,"uninformative":0,"failed":0,
"stale":0,"decided_early":0,"carried":0,"scored":0,"score_sum":0.0,"last_failure":null}}"""


def write(path: Path, requests: dict[str, bytes]) -> None:
    """Writes a journal of version 2 with a group for each of `requests`, and a sampler with a draw.

    The first group has two rollouts that are done and one that failed; the second has one that is
    done, one in its second attempt and one that never began; rollouts of the others never began.
    """
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    for statement in filter(str.strip, TABLES.split(";")):
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {0x50524F52}")
    db.execute("PRAGMA user_version = 2")
    for group_id, request in requests.items():
        db.execute(
            "INSERT INTO groups (group_id, unended, bytes, created_at, request)"
            " VALUES (?, 3, ?, 1763843000.25, ?)",
            (group_id, len(request) + 512, request),
        )
    ended, half, *_ = requests
    for index, state in enumerate(("done", "done", "failed")):
        _end(db, ended, index, state)
    _end(db, half, 0, "done")
    db.execute(
        "INSERT INTO rollouts (rollout_id, group_id, attempt) VALUES (?, ?, 2)", (f"{half}.1", half)
    )
    db.execute("UPDATE ended SET bytes = (SELECT bytes FROM groups WHERE group_id = ?)", (ended,))
    db.execute("INSERT INTO facts VALUES ('weights', ?)", (b"newest",))
    db.execute("INSERT INTO samplers VALUES ('s', ?)", (SAMPLER,))
    db.execute(
        "INSERT INTO candidates (sampler_id, name, task_id, state, attempt, begun_in,"
        " oldest_version, request) VALUES ('s', 'c', 't', 'waiting', 0, NULL, NULL, ?)",
        (requests[half],),
    )
    db.close()


def _end(db: sqlite3.Connection, group_id: str, index: int, state: str) -> None:
    db.execute(
        "INSERT OR REPLACE INTO rollouts VALUES (?, ?, 1, ?, ?, ?)",
        (f"{group_id}.{index}", group_id, state, b'"summary"', b'{"answer":%d}' % index),
    )
    db.execute(
        "UPDATE groups SET unended = unended - 1, bytes = bytes + 527,"
        " ended_at = CASE unended WHEN 1 THEN 1763843900.75 END WHERE group_id = ?",
        (group_id,),
    )
