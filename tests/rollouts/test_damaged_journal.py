"""Journals in whose files pages were overwritten: each lost result is lost alone."""

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_service.errors import JournalError, ResultLost
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.journal.copy import groups_in
from prorl_service.rollouts.record import EndedRollout
from prorl_service.schemas import Rollout, RolloutState
from tests.rollouts.journal_rows import accepted, ended

PAGE = 4096
GROUPS, SIZE = 12, 2
Damage = Callable[[bytes, random.Random], bytes]


def noise(page: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(len(page))


def nothing(page: bytes, chance: random.Random) -> bytes:
    return bytes(len(page))


def one_bit(page: bytes, chance: random.Random) -> bytes:
    changed = bytearray(page)
    changed[chance.randrange(len(page))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def some_bytes(page: bytes, chance: random.Random) -> bytes:
    start, length = chance.randrange(len(page)), chance.randint(1, 200)
    return (page[:start] + chance.randbytes(length) + page[start + length :])[: len(page)]


damages = st.tuples(
    st.sampled_from([noise, nothing, one_bit, some_bytes]),
    st.lists(st.integers(0, 10_000), min_size=1, max_size=6),
    st.integers(0, 2**32),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "j"
    asyncio.run(_write(path))
    return path


async def _write(path: Path) -> None:
    async with Journal(path) as journal:
        for number in range(GROUPS):
            await journal.accept([accepted(f"g{number}", n=SIZE)])
            for index in range(SIZE):
                await journal.end(ended(f"g{number}", index, size=1500 * (number + 1) + index))


def expected() -> dict[str, tuple[bytes, bytes]]:
    rows = [ended(f"g{n}", i, size=1500 * (n + 1) + i) for n in range(GROUPS) for i in range(SIZE)]
    return {row.rollout_id: (row.summary, row.answer) for row in rows}


def scribble(path: Path, damage: Damage, pages: list[int], chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for page in pages:
        start = page % (len(content) // PAGE) * PAGE
        content[start : start + PAGE] = damage(bytes(content[start : start + PAGE]), chance)
    path.write_bytes(content)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(damages)
def test_what_can_be_read_is_what_was_written_and_the_rest_is_lost_alone(
    whole: Path,
    tmp_path_factory: pytest.TempPathFactory,
    damage: tuple[Damage, list[int], int],
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "j"
    shutil.copy(whole, path)
    kind, pages, seed = damage
    scribble(path, kind, pages, random.Random(seed))
    asyncio.run(_check(path))


async def _check(path: Path) -> None:
    try:
        journal = Journal(path)
        journal.claim(None, resume=True)
    except JournalError as refusal:
        assert "\n" not in refusal.message
        return
    async with journal:
        for rollout_id, written in expected().items():
            for read in (journal.answer(rollout_id), journal.summaries([rollout_id])):
                try:
                    found = await read
                except (ResultLost, JournalError):
                    continue
                if isinstance(found, dict):
                    summary = found.get(rollout_id)
                    assert summary == written[0] or isinstance(summary, ResultLost | None)
                else:
                    assert found in (written, None)
        assert journal.death is None
        assert journal.failure is None
        assert await journal.accept([accepted("new")]) or journal.death is None


def pages_of(path: Path, table: str) -> list[int]:
    """Returns the pages that hold nothing but the table's rows, from 0."""
    with closing(sqlite3.connect(path)) as db:
        try:
            found = db.execute("SELECT pageno FROM dbstat WHERE name = ?", (table,)).fetchall()
        except sqlite3.OperationalError:
            pytest.skip("this SQLite has no dbstat")
    return [page - 1 for (page,) in found]
