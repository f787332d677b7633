"""How much and how long the shelf keeps."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from prorl_service.shelf import training
from prorl_service.shelf.policy import ShelfOptions
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
    until,
    whole,
)


@pytest.mark.slow
async def test_the_shelf_stays_within_its_size_and_evicts_contents_first(tmp_path: Path) -> None:
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
        # Contents of one token are less than their rows, which may take half: both go together.
        assert 200 < len(found) < 3000
        assert found[0].group_id == "g2999"
        assert "g2999.0" in await whole(shelf)
        counted = await shelf.read(lambda db: training.versions(db, "run", None))
        assert [one.rollouts for one in counted] == [3000], "counts stay when rows go"
        while _size(path) > 2**20:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _size(journal: Path) -> int:
    return sum(
        one.stat().st_size for one in journal.parent.glob("j.shelf*") if one.suffix != "-shm"
    )


async def test_rollouts_leave_after_the_given_hours_of_uptime(
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


async def test_one_group_cannot_fill_the_shelf(tmp_path: Path) -> None:
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
