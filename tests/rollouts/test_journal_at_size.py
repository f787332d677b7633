"""The journal when it is large, and when its threads fail."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from prorl_service.errors import JournalError
from prorl_service.rollouts.journal import Journal, tables, threads
from prorl_service.rollouts.journal.tables import Retention
from prorl_service.schemas import RolloutState
from tests.rollouts.journals import accepted, ended


async def filled(journal: Journal, groups: int, size: int = 20_000) -> list[str]:
    names = [f"g{i}" for i in range(groups)]
    await journal.accept([accepted(name) for name in names])
    await asyncio.gather(*(journal.end(ended(name, i, size)) for name in names for i in range(2)))
    return names


async def tidied(journal: Journal) -> None:
    """Waits until all garbage is deleted; only the test's own timeout bounds the wait."""
    while await journal.read(tables.has_garbage):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def rows_left(journal: Journal) -> Any:
    found = await journal.read(lambda db: db.execute("SELECT count(*) FROM rollouts").fetchone())
    return found[0]


@pytest.fixture
def slow_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that delete one row each."""
    monkeypatch.setattr(threads, "SLICE_S", -1.0)


@pytest.mark.slow
async def test_groups_are_forgotten_immediately_and_deleted_in_slices(
    tmp_path: Path, slow_slices: None
) -> None:
    async with Journal(tmp_path / "j") as journal:
        names = await filled(journal, 50)
        assert await journal.forget(names) == {RolloutState.DONE: 100}
        assert await journal.read(tables.answer, "g0.0") is None
        assert await journal.read(tables.summaries, ["g49.1"]) == {}
        assert await journal.read(tables.find, names) == {}
        assert (await journal.read(tables.count_ended)).total() == 0
        assert await journal.read(tables.has_garbage)
        assert await journal.accept([accepted("g0")]), "the id of a forgotten group is taken"
        await journal.end(ended("g0", 1, size=7))
        await tidied(journal)
        assert await journal.read(tables.answer, "g0.1") == (b"summary", b"x" * 7)
        assert await rows_left(journal) == 1


@pytest.mark.slow
async def test_deleting_continues_after_a_restart(tmp_path: Path, slow_slices: None) -> None:
    async with Journal(tmp_path / "j") as journal:
        await journal.forget(await filled(journal, 10))
        assert await journal.read(tables.has_garbage)
    async with Journal(tmp_path / "j") as journal:
        await tidied(journal)
        assert await rows_left(journal) == 0


async def test_room_is_given_back_to_the_disk(tmp_path: Path) -> None:
    path, log = tmp_path / "j", tmp_path / "j-wal"
    async with Journal(path) as journal:
        names = await filled(journal, 400)
        full = path.stat().st_size + log.stat().st_size
        assert full > 400 * 2 * 20_000
        await journal.forget(names)
        while path.stat().st_size + log.stat().st_size > full / 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await journal.accept([accepted("after")])


async def test_old_results_make_room_in_the_same_way(tmp_path: Path) -> None:
    async with Journal(tmp_path / "j", Retention(keep_mb=100_000 / 2**20)) as journal:
        await filled(journal, 20)
        await tidied(journal)
        assert (await journal.read(tables.count_ended)).total() == 4
        assert await rows_left(journal) == 4


async def test_a_long_read_delays_no_write(tmp_path: Path) -> None:
    async with Journal(tmp_path / "j") as journal:
        is_written = threading.Event()
        long_read = journal.read(lambda db: is_written.wait(60))
        await journal.accept([accepted("a", n=1)])
        await journal.end(ended("a"))
        is_written.set()
        assert await long_read


# --- failures -----------------------------------------------------------------------------------


async def test_work_that_raises_fails_alone(tmp_path: Path) -> None:
    def fail(db: sqlite3.Connection) -> None:
        raise ZeroDivisionError

    async with Journal(tmp_path / "j") as journal:
        failing = [journal.write(fail), journal.read(fail)]
        accepting = journal.accept([accepted("a")])
        with pytest.raises(JournalError, match="ZeroDivisionError"):
            await failing[0]
        with pytest.raises(ZeroDivisionError):
            await failing[1]
        assert await accepting


@pytest.mark.parametrize("method", ["_write", "_read"])
async def test_a_thread_that_ends_leaves_no_caller_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def end(*_: object) -> None:
        raise MemoryError("no more")

    async with Journal(tmp_path / "j") as journal:
        kind = threads.Writer if method == "_write" else threads.Reader
        monkeypatch.setattr(kind, method, end)
        asked = (
            journal.accept([accepted("a")])
            if method == "_write"
            else journal.read(tables.find, ["a"])
        )
        kept = journal.begin("a.0", 1)
        with pytest.raises(JournalError, match="its thread ended: MemoryError"):
            await asked
        assert journal.death is not None
        assert not journal.writable.is_set()
        for later in (journal.accept([accepted("b")]), journal.read(tables.find, ["a"])):
            with pytest.raises(JournalError, match="its thread ended"):
                await later
        await asyncio.wait([kept])
        assert journal.begin("a.1", 1).cancelled()
