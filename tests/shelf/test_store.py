"""The shelf by itself: what is kept, for how long, and what becomes of it when things go wrong."""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.journal.tables import Retention
from prorl_service.schemas import Blame, RolloutState
from prorl_service.schemas.views import KeptFor
from prorl_service.shelf import ended_rows, shelving, store, training
from prorl_service.shelf.policy import ShelfOptions
from prorl_service.shelf.shelving import Now
from prorl_service.shelf.store import Shelf
from tests.shelf.shelved import (
    ROWS_ONLY,
    WHOLE,
    accept,
    end,
    ended,
    rows,
    settled,
    shelf_at,
    shelved,
    submitted,
    until,
    whole,
)

FAILED = {"state": RolloutState.FAILED, "blame": Blame.SANDBOX}


# --- what is kept -------------------------------------------------------------------------------


async def test_each_ended_rollout_has_a_row_and_chosen_groups_are_whole(tmp_path: Path) -> None:
    async with shelf_at(tmp_path / "j", ShelfOptions(shelf_sample=0, shelf_first=2)) as (
        journal,
        shelf,
    ):
        for number in range(4):
            await shelved(journal, shelf, submitted(f"g{number}", n=2), created_at=1.0 + number)
        assert [one.rollout_id for one in await rows(shelf)] == [
            f"g{number}.{index}" for number in (3, 2, 1, 0) for index in (0, 1)
        ]
        assert await whole(shelf) == {"g0.0", "g0.1", "g1.0", "g1.1"}


async def test_the_first_groups_of_each_version_are_counted_over_restarts(tmp_path: Path) -> None:
    options = ShelfOptions(shelf_sample=0, shelf_first=2)
    for number, version in enumerate([0, 0, 0, 1, 1, 1]):
        async with shelf_at(tmp_path / "j", options) as (journal, shelf):
            await shelved(journal, shelf, submitted(f"g{number}"), version=version)
            kept = await whole(shelf)
    assert kept == {"g0.0", "g1.0", "g3.0", "g4.0"}


@pytest.mark.parametrize("blame", list(Blame))
async def test_a_failure_keeps_its_whole_group_siblings_that_ended_before_too(
    tmp_path: Path, blame: Blame
) -> None:
    async with shelf_at(tmp_path / "j", ROWS_ONLY) as (journal, shelf):
        group = submitted(n=3)
        await accept(journal, group)
        await end(journal, ended(group, 0, reward=1))
        await settled(shelf)
        assert await whole(shelf) == set()
        await end(journal, ended(group, 1, state=RolloutState.FAILED, blame=blame))
        await end(journal, ended(group, 2, reward=0))
        await journal.forget(["g"])
        await settled(shelf)
        assert await whole(shelf) == {"g.0", "g.1", "g.2"}
        assert {one.kept_for for one in await rows(shelf)} == {KeptFor.FAILED}


async def test_what_was_cancelled_has_not_failed(tmp_path: Path) -> None:
    async with shelf_at(tmp_path / "j", ROWS_ONLY) as (journal, shelf):
        cancelled = {"state": RolloutState.CANCELLED, "blame": Blame.SERVICE}
        await shelved(journal, shelf, submitted(), **cancelled)
        assert await whole(shelf) == set()
        assert await rows(shelf, blame=["service"]) == []


async def test_what_a_front_forwarded_is_kept_there(tmp_path: Path) -> None:
    path, group = tmp_path / "j", submitted().model_copy(update={"owner": "front"})
    async with Journal(path) as journal:
        await accept(journal, group)
        await end(journal, ended(group, reward=1))
    async with shelf_at(path) as (journal, shelf):
        await settled(shelf)
        await journal.forget(["g"])
        assert [one.rollout_id for one in await rows(shelf)] == ["g.0"]
        assert await whole(shelf) == set()


@pytest.mark.slow
async def test_content_is_copied_although_the_group_is_acknowledged_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prorl_service.rollouts.journal.threads.SLICE_S", 0.0)
    async with shelf_at(tmp_path / "j") as (journal, shelf):
        groups = [submitted(f"g{number}", n=4) for number in range(25)]
        await accept(journal, *groups)
        await end(
            journal, *(ended(one, i, output="x" * 10_000) for one in groups for i in range(4))
        )
        await journal.forget([one.group_id for one in groups])
        await settled(shelf)
        assert len(await whole(shelf)) == 100


async def test_copies_that_are_awaited_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelving, "MAX_AWAITED", 5)
    async with shelf_at(tmp_path / "j") as (journal, shelf):
        group = submitted(n=20)
        await accept(journal, group)
        await end(journal, *(ended(group, i) for i in range(20)))
        await journal.forget(["g"])
        await settled(shelf)
        assert len(await rows(shelf)) == 20
        assert len(await whole(shelf)) >= 5


async def test_a_group_submitted_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async with shelf_at(tmp_path / "j") as (journal, shelf):
        await shelved(journal, shelf, submitted(n=3), reward=0, created_at=1.0)
        await shelved(journal, shelf, submitted(n=2), reward=1, created_at=2.0)
        found = await rows(shelf)
        assert [(one.rollout_id, one.reward) for one in found] == [("g.0", 1), ("g.1", 1)]
        assert await whole(shelf) == {"g.0", "g.1"}


async def test_what_others_needed_the_room_of_at_once_has_its_row(tmp_path: Path) -> None:
    """The journal forgets results that nobody acknowledged, in the transaction of others."""
    retention = Retention(keep_mb=10_000 / 2**20)
    async with shelf_at(tmp_path / "j", retention=retention) as (journal, shelf):
        groups = [submitted(f"g{number}") for number in range(6)]
        await accept(journal, *groups)
        await end(journal, *(ended(one, output="x" * 5000) for one in groups))
        await settled(shelf)
        assert len(await rows(shelf)) == 6


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_shelf_stays_within_its_size_whole_rollouts_go_first(tmp_path: Path) -> None:
    path = tmp_path / "j"
    options = ShelfOptions(shelf_mb=2, shelf_sample=1)
    async with shelf_at(path, options) as (journal, shelf):
        for number in range(150):
            group = submitted(f"g{number}", n=2)
            await shelved(journal, shelf, group, output=noise(15_000), created_at=1.0 + number)
            if number == 20:
                assert len(await whole(shelf)) == 42
        kept = await whole(shelf)
        assert 0 < len(kept) < 300
        assert {"g149.0", "g149.1"} <= kept
        assert "g0.0" not in kept
        assert len(await rows(shelf)) == 300, "rows go later than content"
        while _size(path) > 2 * 2**20:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_rows_are_bounded_too_and_the_newest_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "j"
    async with shelf_at(path, ShelfOptions(shelf_mb=1, shelf_sample=1)) as (journal, shelf):
        for start in range(0, 3000, 100):
            groups = [submitted(f"g{number}") for number in range(start, start + 100)]
            await accept(journal, *groups)
            await end(journal, *(ended(one, created_at=1.0 + start) for one in groups))
            await journal.forget([one.group_id for one in groups])
            await settled(shelf)
        found = await rows(shelf)
        assert 500 < len(found) < 3000
        assert found[0].group_id == "g2999"
        assert "g2999.0" in await whole(shelf)
        counted = await shelf.read(lambda db: training.versions(db, "run", None))
        assert [one.rollouts for one in counted] == [3000], "counts stay when rows go"
        while _size(path) > 2**20:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def noise(size: int) -> str:
    """Text that cannot be compressed by much."""
    return os.urandom(size // 2).hex()


def _size(journal: Path) -> int:
    return sum(
        one.stat().st_size for one in journal.parent.glob("j.shelf*") if one.suffix != "-shm"
    )


async def test_rollouts_leave_after_the_hours_that_services_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(WHOLE, shelf_hours=1.5)
    monotonic = time.monotonic
    for name in "abc":
        async with shelf_at(tmp_path / "j", options) as (journal, shelf):
            await shelved(journal, shelf, submitted(name))
            if name == "c":
                await until(shelf, lambda found: {one.group_id for one in found} == {"b", "c"})
            monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 3600)
        monkeypatch.setattr(time, "monotonic", monotonic)


async def test_one_group_does_not_take_the_whole_shelf(tmp_path: Path) -> None:
    options = ShelfOptions(shelf_mb=1, shelf_sample=1)
    async with shelf_at(tmp_path / "j", options) as (journal, shelf):
        await shelved(journal, shelf, submitted("small"))
        large = submitted("large", n=40)
        await accept(journal, large)
        await end(journal, *(ended(large, i, output=noise(50_000)) for i in range(40)))
        await settled(shelf)
        kept = await whole(shelf)
        assert "small.0" in kept
        assert 2 < len(kept) < 41


# --- runs and restarts --------------------------------------------------------------------------


async def test_runs_are_told_apart_and_stay(tmp_path: Path) -> None:
    for run, reward in (("first", 0.0), ("second", 1.0)):
        async with shelf_at(tmp_path / "j", run=run) as (journal, shelf):
            await shelved(journal, shelf, submitted(n=2), reward=reward, created_at=reward + 1)
    async with shelf_at(tmp_path / "j", run="third") as (_, shelf):
        found = await rows(shelf)
        assert [(one.run, one.reward) for one in found] == [
            *[("second", 1.0)] * 2,
            *[("first", 0.0)] * 2,
        ]
        assert [one.reward for one in await rows(shelf, run="first")] == [0.0, 0.0]
        assert await rows(shelf, run="third") == []
        counted = await shelf.read(lambda db: training.versions(db, "first", None))
        assert [one.mean_reward for one in counted] == [0.0]


async def test_what_a_killed_process_did_not_shelve_is_found_at_the_next_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "j"
    async with Journal(path) as journal:  # as if the shelf's part of it was lost
        groups = [submitted("a", n=2), submitted("b", n=2)]
        await accept(journal, *groups)
        await end(journal, *(ended(one, i, reward=i, version=3) for one in groups for i in (0, 1)))
    async with shelf_at(path) as (journal, shelf):
        await settled(shelf)
        assert await whole(shelf) == {"a.0", "a.1", "b.0", "b.1"}
        assert {one.sampled_tokens for one in await rows(shelf)} == {2}
        await journal.forget(["a", "b"])
    async with shelf_at(path) as (_, shelf):
        assert len(await whole(shelf)) == 4
        (counted,) = await shelf.read(lambda db: training.versions(db, "run", None))
        assert (counted.rollouts, counted.groups) == (4, 2), "nothing is counted twice"


async def test_copies_that_an_earlier_process_left_are_made(tmp_path: Path) -> None:
    path = tmp_path / "j"
    async with shelf_at(path) as (journal, shelf):
        await accept(journal, submitted())
        await end(journal, ended(submitted()))
        await settled(shelf)
    with closing(sqlite3.connect(f"{path}.shelf", isolation_level=None)) as db:
        db.execute("UPDATE rollouts SET content = 3")
        db.execute("DELETE FROM contents")
        db.execute("DELETE FROM requests")
    async with shelf_at(path) as (_, shelf):
        await settled(shelf)
        assert await whole(shelf) == {"g.0"}


async def test_a_journal_in_memory_has_a_shelf_that_leaves_nothing(tmp_path: Path) -> None:
    async with shelf_at(None) as (journal, shelf):
        await shelved(journal, shelf, submitted())
        assert await whole(shelf) == {"g.0"}
        directory = shelf._file.path.parent
        assert directory.exists()
    assert not directory.exists()


async def test_a_shelf_with_nothing_on_it_is_removed(tmp_path: Path) -> None:
    async with shelf_at(tmp_path / "j"):
        assert (tmp_path / "j.shelf").exists()
    assert os.listdir(tmp_path) == []


def test_there_is_no_shelf_if_none_is_wanted(tmp_path: Path) -> None:
    assert Shelf.open(tmp_path / "j", "run", ShelfOptions(shelf_mb=0)) is None
    assert list(tmp_path.iterdir()) == []


# --- when things go wrong -----------------------------------------------------------------------


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
async def test_a_file_that_is_no_shelf_is_moved_aside_with_one_line(
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
    assert "it is now j.shelf.damaged, and a new one begins" in warning.getMessage()
    assert (tmp_path / "j.shelf.damaged").read_bytes() == before


async def test_a_place_where_no_file_can_be_costs_the_shelf_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "j.shelf").mkdir()
    assert Shelf.open(tmp_path / "j", "run", WHOLE) is None
    (warning,) = caplog.records
    assert "there is no shelf, ended rollouts are not listed" in warning.getMessage()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RETRY_S", 0.05)


async def test_a_full_disk_costs_no_result_and_what_is_not_acknowledged_is_shelved_later(
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
    assert len(messages) == 2, messages
    assert "cannot be written, rollouts that end are not kept for people" in messages[0]
    assert "can be written again" in messages[1]


async def test_a_file_that_is_damaged_while_it_is_used_is_given_up(
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
        assert await journal.answer("h.0") is not None
        assert "malformed" in (shelf.failure or "")
    assert (tmp_path / "j.shelf.damaged").exists()
    async with shelf_at(tmp_path / "j") as (_, shelf):
        await settled(shelf)
        assert await whole(shelf) == {"g.0", "h.0"}, "what the journal has comes onto the new one"


@pytest.mark.parametrize("broken", ["ended", "copy", "tidy"])
async def test_a_bug_of_the_shelf_costs_no_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def bug(*_: object) -> None:
        raise KeyError("a bug")

    async with shelf_at(tmp_path / "j") as (journal, _):
        monkeypatch.setattr(Shelf, broken, bug)
        for name in "ab":
            await accept(journal, submitted(name))
            await end(journal, ended(submitted(name)))
            assert await journal.answer(f"{name}.0") is not None
        assert journal.death is None
    assert [one for one in caplog.messages if "goes on without its follower" in one]


# --- what a row says ----------------------------------------------------------------------------


async def test_a_rollout_that_sampled_nothing_counts_for_the_version_at_its_end(
    tmp_path: Path,
) -> None:
    async with shelf_at(tmp_path / "j") as (journal, shelf):
        shelf.set_now(Now(policy_version=7))
        await shelved(journal, shelf, submitted("none"), version=None, **FAILED)
        await shelved(journal, shelf, submitted("old"), version=6, oldest=4)
        found = {one.group_id: one for one in await rows(shelf)}
        assert (found["none"].policy_version, found["none"].staleness) == (7, None)
        assert (found["old"].policy_version, found["old"].staleness) == (6, 3)
        assert [one.group_id for one in await rows(shelf, policy_version=7)] == ["none"]


async def test_versions_are_summed_up(tmp_path: Path) -> None:
    async with shelf_at(tmp_path / "j", ROWS_ONLY) as (journal, shelf):
        shelf.set_now(Now(policy_version=2))
        for name, scores in (("a", (0, 1)), ("b", (1, 1)), ("c", (0, 0)), ("d", (0.5, 0.5))):
            group = submitted(name, n=2)
            await accept(journal, group)
            await end(journal, *(ended(group, i, reward=scores[i], version=1) for i in (0, 1)))
        await shelved(journal, shelf, submitted("e"), version=1, **FAILED)
        unended = submitted("f", n=2)
        await accept(journal, unended)
        await end(journal, ended(unended, 0, state=RolloutState.CANCELLED, version=2))
        first, second = await shelf.read(lambda db: training.versions(db, "run", None))
        assert (first.rollouts, first.done, first.failed, first.groups) == (9, 8, 1, 5)
        assert first.outcomes == {
            "informative": 1,
            "all_one": 1,
            "all_zero": 1,
            "all_equal": 1,
            "unscored": 1,
        }
        assert (first.informative_share, first.mean_reward, first.success_rate) == (
            1 / 4,
            0.5,
            3 / 8,
        )
        assert first.failures == {Blame.SANDBOX: 1}
        assert (first.sampled_tokens, first.wasted_tokens, first.mean_staleness) == (18, 2, 1.0)
        assert (second.cancelled, second.wasted_tokens, second.groups) == (1, 2, 0)
        assert await shelf.read(lambda db: training.versions(db, "run", "nobody")) == []
