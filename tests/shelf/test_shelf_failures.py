"""The shelf with damaged files, a full disk, and bugs of its own: no result is lost."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from prorl_service.rollouts.journal import tables
from prorl_service.shelf import ended_rows, store
from prorl_service.shelf.store import Shelf
from tests.shelf.shelved import (
    WHOLE,
    accept,
    end,
    ended,
    noise,
    rows,
    settled,
    shelf_at,
    shelved,
    submitted,
    whole,
)


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE mine (x)")


def _of_another_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA application_id = {0x50525348}")
        db.execute("PRAGMA user_version = 99")
        db.execute("CREATE TABLE groups (x)")


def _text(path: Path) -> None:
    path.write_text("this is no database at all, but long enough to look like a file of one " * 99)


@pytest.mark.parametrize("spoil", [_foreign, _of_another_version, _text])
async def test_a_file_that_is_not_a_shelf_is_moved_aside_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None]
) -> None:
    path = tmp_path / "j.shelf"
    spoil(path)
    before = path.read_bytes()
    async with shelf_at(tmp_path / "j") as (journal, shelf):
        await shelved(journal, shelf, submitted())
        assert await whole(shelf) == {"g.0"}
    (warning,) = (one for one in caplog.records if one.levelno >= logging.WARNING)
    assert warning.levelno == logging.WARNING
    assert "moved to j.shelf.damaged, starting a new one" in warning.getMessage()
    assert (tmp_path / "j.shelf.damaged").read_bytes() == before


async def test_an_unusable_path_turns_off_only_the_shelf(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "j.shelf").mkdir()
    assert Shelf.open(tmp_path / "j", "run", WHOLE) is None
    (warning,) = caplog.records
    assert "there is no shelf, so ended rollouts are not listed" in warning.getMessage()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RETRY_S", 0.05)


async def test_a_full_disk_loses_no_result_and_rollouts_are_added_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, soon: None
) -> None:
    async with shelf_at(tmp_path / "j") as (journal, shelf):
        await shelved(journal, shelf, submitted("before"))
        writer = shelf._file.writer
        (pages,) = writer.execute("PRAGMA max_page_count").fetchone()
        writer.execute("PRAGMA max_page_count = 1")
        for name in ("lost", "late"):
            await accept(journal, submitted(name, n=2))
            for index in (0, 1):
                await end(journal, ended(submitted(name, n=2), index, output=noise(100_000)))
            await shelf.read(lambda _: None)
        await journal.forget(["lost"])
        assert shelf.failure == "the shelf cannot be written: database or disk is full"
        assert "before.0" in {one.rollout_id for one in await rows(shelf)}, "it can be read"
        writer.execute(f"PRAGMA max_page_count = {pages}")
        await asyncio.sleep(0.1)
        await accept(journal, submitted("after"))
        await end(journal, ended(submitted("after")))
        await settled(shelf)
        assert await whole(shelf) == {"before.0", "late.0", "late.1", "after.0"}
        assert shelf.failure is None
    messages = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    # A row that fits into pages that are there may be written in between.
    for failed, mended in zip(messages[::2], messages[1::2], strict=True):
        assert "cannot be written, so ended rollouts are not kept for people" in failed
        assert "can be written again" in mended
    assert messages


async def test_a_file_that_is_damaged_in_use_is_abandoned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    async with shelf_at(tmp_path / "j") as (journal, shelf):
        await shelved(journal, shelf, submitted("before"))
        with monkeypatch.context() as patch:
            patch.setattr(ended_rows, "add_rollout", broken)
            await accept(journal, submitted("g"))
            await end(journal, ended(submitted("g")))
            await shelf.read(lambda _: None)
        await accept(journal, submitted("h"))
        await end(journal, ended(submitted("h")))
        assert await journal.read(tables.answer, "h.0") is not None
        assert "malformed" in (shelf.failure or "")
    assert (tmp_path / "j.shelf.damaged").exists()
    async with shelf_at(tmp_path / "j") as (_, shelf):
        await settled(shelf)
        assert await whole(shelf) == {"g.0", "h.0"}, "what the journal has comes onto the new one"


@pytest.mark.parametrize("broken", ["ended", "copy", "tidy"])
async def test_a_bug_in_the_shelf_loses_no_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def bug(*_: object) -> None:
        raise KeyError("a bug")

    async with shelf_at(tmp_path / "j") as (journal, _):
        monkeypatch.setattr(Shelf, broken, bug)
        for name in "ab":
            await accept(journal, submitted(name))
            await end(journal, ended(submitted(name)))
            assert await journal.read(tables.answer, f"{name}.0") is not None
        assert journal.death is None
    assert [one for one in caplog.messages if "its follower failed, continuing without it" in one]
