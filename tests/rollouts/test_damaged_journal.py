"""Journals in whose files pages were overwritten: each lost result is lost alone."""

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_service.errors import JournalError, ResultLost
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.rollouts.journal.seals import opened
from tests.rollouts.journals import accepted, ended

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
    except JournalError:
        return
    async with journal:
        for rollout_id, written in expected().items():
            for read in (
                journal.read(tables.answer, rollout_id),
                journal.read(tables.summaries, [rollout_id]),
            ):
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
        with suppress(JournalError):
            await journal.accept([accepted("new")])
        with suppress(JournalError):
            await journal.forget(["g0"])
        assert journal.death is None


async def test_a_result_whose_page_is_copied_over_another_is_lost(tmp_path: Path) -> None:
    """Covers a write that a disk put elsewhere: the page is whole, but another's."""
    async with Journal(tmp_path / "j") as journal:
        await journal.accept([accepted("g", n=2)])
        for index in range(2):
            await journal.end(ended("g", index))
    with sqlite3.connect(tmp_path / "j") as db:
        db.execute("UPDATE rollouts SET answer = (SELECT answer FROM rollouts WHERE id % 4096 = 1)")
    async with Journal(tmp_path / "j") as journal:
        assert await journal.read(tables.answer, "g.1") == expected_of("g", 1)
        with pytest.raises(ResultLost):
            await journal.read(tables.answer, "g.0")


@pytest.mark.parametrize("stored", ["text", 1.5, None])
def test_a_result_of_another_type_is_lost(stored: object) -> None:
    with pytest.raises(ResultLost):
        opened(stored, 1)


def expected_of(group_id: str, index: int) -> tuple[bytes, bytes]:
    row = ended(group_id, index)
    return row.summary, row.answer
