"""Journals of older versions, migrated to the current one with all their contents."""

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from prorl_service.errors import JournalError, ResultLost
from prorl_service.resume import rows
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.rollouts.journal.file import MIGRATIONS
from prorl_service.rollouts.journal.tables import STRIDE, TABLES, VERSION
from prorl_service.sampling.runner import SamplerState
from prorl_service.schemas import MAX_GROUP_SIZE, Group
from tests.rollouts.journals import accepted, ended

DIGESTS = {4: "e9cba0c9e345702f", 5: "233f03ff438ec6ff"}
"""Digests of the tables and of the models that they hold as JSON, keyed by version."""


def without_words(schema: Any) -> Any:
    """Removes what documents a field, which changes no journal."""
    if isinstance(schema, list):
        return [without_words(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    words = ("title", "description")
    return {k: without_words(v) for k, v in schema.items() if k not in words or isinstance(v, dict)}


def test_a_journals_contents_do_not_change_without_a_new_version() -> None:
    held = [model.model_json_schema() for model in (Group, SamplerState)]
    text = json.dumps([f"\n{TABLES}", STRIDE, without_words(held)], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert DIGESTS.get(VERSION) == digest, (
        "the journal's tables changed, or a model that they hold as JSON. If a released service "
        "has written journals of this version, raise journal.tables.VERSION, add a step to "
        "journal.file and a journal of the old version to these tests; otherwise, adapt the "
        "step that leads to this version. Then put the new digest into DIGESTS."
    )
    assert MAX_GROUP_SIZE <= STRIDE
    assert set(MIGRATIONS) == set(range(min(MIGRATIONS), VERSION))


TURNS_OF_VERSION_4 = """
CREATE TABLE turns (
    rollout INTEGER NOT NULL,
    number INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    layer TEXT NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (rollout, number)
) STRICT;
"""


def with_tables_of_version_4(db: sqlite3.Connection) -> None:
    for table in ("turns", "continuations", "outside_calls"):
        db.execute(f"DROP TABLE {table}")
    db.execute(TURNS_OF_VERSION_4)
    db.execute("PRAGMA user_version = 4")


async def test_results_of_a_journal_of_version_4_are_read_without_seals(tmp_path: Path) -> None:
    async with Journal(tmp_path / "j") as journal:
        await journal.accept([accepted("a", n=2)])
        for index in range(2):
            await journal.end(ended("a", index))
    with sqlite3.connect(tmp_path / "j") as db:
        with_tables_of_version_4(db)
        db.execute("""UPDATE rollouts SET summary = CAST('{"s":1}' AS BLOB)""")
        db.execute("""UPDATE rollouts SET answer = CAST('{"a":1}' AS BLOB) WHERE id % 4096 = 0""")
        db.execute("""UPDATE rollouts SET answer = CAST('{"a":' AS BLOB) WHERE id % 4096 = 1""")
    async with Journal(tmp_path / "j") as journal:
        assert await journal.read(tables.answer, "a.0") == (b'{"s":1}', b'{"a":1}')
        with pytest.raises(ResultLost):
            await journal.read(tables.answer, "a.1")


async def test_turns_of_version_4_excuse_attempts_and_are_not_believed(tmp_path: Path) -> None:
    async with Journal(tmp_path / "j") as journal:
        expected = await journal.read(columns)
        await journal.accept([accepted("a", 2)])
    with sqlite3.connect(tmp_path / "j") as db:
        with_tables_of_version_4(db)
        row = STRIDE + 1
        db.executemany(
            "INSERT INTO turns VALUES (?, ?, ?, ?, ?)",
            [(row, 0, 1, "", b"zero"), (row, 1, 3, "layer", b"one")],
        )
    async with Journal(tmp_path / "j") as journal:
        assert await journal.read(columns) == expected
        [unfinished] = await journal.read(tables.unfinished)
        assert unfinished.saved_attempts == {"a.1": 3}
        kept = await journal.read(lambda db: rows.saved(db, "a.1"))
        assert kept is not None
        with pytest.raises(ValueError, match="an earlier version of the service"):
            kept.check()
        assert await journal.read(rows.layers) == set()


def columns(db: sqlite3.Connection) -> dict[str, list[Any]]:
    names = db.execute("SELECT name FROM sqlite_schema ORDER BY name").fetchall()
    return {name: db.execute(f"PRAGMA table_xinfo({name})").fetchall() for (name,) in names}


async def test_a_migration_that_fails_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    async with Journal(tmp_path / "j") as journal:
        await journal.accept([accepted("a")])
        await journal.end(ended("a"))
    with sqlite3.connect(tmp_path / "j") as db:
        with_tables_of_version_4(db)
        db.execute("CREATE TABLE outside_calls (mine)")  # the last that the step makes
    for _ in range(2):
        with pytest.raises(JournalError, match="outside_calls already exists"):
            Journal(tmp_path / "j")
    with sqlite3.connect(tmp_path / "j") as db:
        assert db.execute("PRAGMA user_version").fetchone() == (4,)
        assert db.execute("SELECT count(*) FROM rollouts").fetchone() == (1,)
        assert db.execute("SELECT count(*) FROM turns").fetchone() == (0,)
