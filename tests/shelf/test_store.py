"""The shelf by itself: what is kept, what a row says, runs and restarts."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.journal.tables import Retention
from prorl_service.schemas import Blame, RolloutState
from prorl_service.schemas.views import KeptFor
from prorl_service.shelf import shelving, training
from prorl_service.shelf.policy import ShelfOptions
from prorl_service.shelf.shelving import Now
from prorl_service.shelf.store import Shelf
from tests.shelf.shelved import (
    ROWS_ONLY,
    accept,
    end,
    ended,
    rows,
    settled,
    shelf_at,
    shelved,
    submitted,
    whole,
)

FAILED = {"state": RolloutState.FAILED, "blame": Blame.SANDBOX}


# --- what is kept -------------------------------------------------------------------------------


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


async def test_cancelled_rollouts_do_not_count_as_failed(tmp_path: Path) -> None:
    async with shelf_at(tmp_path / "j", ROWS_ONLY) as (journal, shelf):
        cancelled = {"state": RolloutState.CANCELLED, "blame": Blame.SERVICE}
        await shelved(journal, shelf, submitted(), **cancelled)
        assert await whole(shelf) == set()
        assert await rows(shelf, blame=["service"]) == []


async def test_content_of_forwarded_rollouts_is_left_to_the_front(tmp_path: Path) -> None:
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
async def test_content_is_copied_even_if_its_group_is_acknowledged_immediately(
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


async def test_pending_copies_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelving, "MAX_AWAITED", 5)
    async with shelf_at(tmp_path / "j") as (journal, shelf):
        group = submitted(n=20)
        await accept(journal, group)
        await end(journal, *(ended(group, i) for i in range(20)))
        await journal.forget(["g"])
        await settled(shelf)
        assert len(await rows(shelf)) == 20
        assert len(await whole(shelf)) >= 5


async def test_a_group_submitted_again_replaces_the_first(tmp_path: Path) -> None:
    async with shelf_at(tmp_path / "j") as (journal, shelf):
        await shelved(journal, shelf, submitted(n=3), reward=0, created_at=1.0)
        await shelved(journal, shelf, submitted(n=2), reward=1, created_at=2.0)
        found = await rows(shelf)
        assert [(one.rollout_id, one.reward) for one in found] == [("g.0", 1), ("g.1", 1)]
        assert await whole(shelf) == {"g.0", "g.1"}


async def test_rollouts_evicted_from_the_journal_immediately_have_rows(tmp_path: Path) -> None:
    """The journal forgets results that nobody acknowledged, in the transaction of others."""
    retention = Retention(keep_mb=10_000 / 2**20)
    async with shelf_at(tmp_path / "j", retention=retention) as (journal, shelf):
        groups = [submitted(f"g{number}") for number in range(6)]
        await accept(journal, *groups)
        await end(journal, *(ended(one, output="x" * 5000) for one in groups))
        await settled(shelf)
        assert len(await rows(shelf)) == 6


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


async def test_versions_have_sums_over_their_rollouts(tmp_path: Path) -> None:
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
        assert (first.sampled_tokens, first.wasted_tokens, first.mean_staleness) == (9, 1, 1.0)
        assert (second.cancelled, second.wasted_tokens, second.groups) == (1, 1, 0)
        assert await shelf.read(lambda db: training.versions(db, "run", "nobody")) == []


# --- runs and restarts --------------------------------------------------------------------------


async def test_rollouts_missed_by_a_killed_process_are_added_on_restart(
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
        assert {one.sampled_tokens for one in await rows(shelf)} == {1}
        await journal.forget(["a", "b"])
    async with shelf_at(path) as (_, shelf):
        assert len(await whole(shelf)) == 4
        (counted,) = await shelf.read(lambda db: training.versions(db, "run", None))
        assert (counted.rollouts, counted.groups) == (4, 2), "nothing is counted twice"


async def test_copies_that_an_earlier_process_left_pending_are_made(tmp_path: Path) -> None:
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


async def test_the_shelf_of_a_journal_in_memory_leaves_no_files(tmp_path: Path) -> None:
    async with shelf_at(None) as (journal, shelf):
        await shelved(journal, shelf, submitted())
        assert await whole(shelf) == {"g.0"}
        directory = shelf._file.path.parent
        assert directory.exists()
    assert not directory.exists()


async def test_an_empty_shelf_is_removed(tmp_path: Path) -> None:
    async with shelf_at(tmp_path / "j"):
        assert (tmp_path / "j.shelf").exists()
    assert os.listdir(tmp_path) == []


def test_a_shelf_of_size_0_is_not_created(tmp_path: Path) -> None:
    assert Shelf.open(tmp_path / "j", "run", ShelfOptions(shelf_mb=0)) is None
    assert list(tmp_path.iterdir()) == []
