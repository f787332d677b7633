"""Full-text search over the shelf: what is found, what no longer is, and what may be asked."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.client import AsyncRolloutClient
from prorl_service.errors import InvalidRequest
from prorl_service.rollouts.journal import Journal
from prorl_service.schemas.text_search import Excerpt, words_of
from prorl_service.schemas.views import GroupQuery, RolloutQuery, RolloutSort, RowFilter
from prorl_service.shelf import search
from prorl_service.shelf.policy import ShelfOptions
from prorl_service.shelf.store import Shelf
from tests.server.application import until
from tests.server.scored_agent import scored
from tests.shelf.shelved import WHOLE, rows, shelf_at, shelved, submitted

ERROR = "sqlite3.OperationalError: unable to open database file"


async def found(shelf: Shelf, text: str) -> list[str]:
    return sorted(one.rollout_id for one in await rows(shelf, text=text))


async def say(journal: Journal, shelf: Shelf, **said: str) -> None:
    """Shelves a group for each name, whose model said that."""
    for name, text in said.items():
        await shelved(journal, shelf, submitted(name), output=f" {text}")


async def test_words_are_found_as_a_phrase(tmp_path: Path) -> None:
    async with shelf_at(tmp_path / "j") as (journal, shelf):
        await say(journal, shelf, a=ERROR, b="a database file that is OPEN", c="ünable to opén Ψ_x")
        assert await found(shelf, "unable to open database file") == ["a.0"]
        assert await found(shelf, "Unable  to open… DATABASE-f") == ["a.0"], "a word's beginning"
        assert await found(shelf, "database file") == ["a.0", "b.0"]
        assert await found(shelf, "open") == ["a.0", "b.0"]
        assert await found(shelf, "opén ψ") == ["c.0"]
        assert await found(shelf, "file database") == []
        assert await found(shelf, "pen") == []
        assert await found(shelf, "go yes") == [], "no phrase spans two texts"
        (row,) = await rows(shelf, text="to opén", run="run")
        assert row.excerpt == Excerpt(
            place="turn 1", before="Yes. ünable ", match="to opén", after=" Ψ_x"
        )


@given(st.text(max_size=20))
def test_no_text_is_an_error_of_syntax(text: str) -> None:
    try:
        wanted = RowFilter(text=text)
    except ValueError:
        assert words_of(text) == []
        return
    with closing(sqlite3.connect(":memory:")) as db:
        said = b'{"messages": [{"content": "AND NOT * \\" ( NEAR"}]}'
        search.put(db, 1, b"{}", b'{"task": ' + said + b"}", 8)
        assert search.row_ids(db, str(wanted.text)) in (b"[]", b"[1]")


async def test_evicted_rollouts_are_not_found_and_their_index_goes(tmp_path: Path) -> None:
    options = replace(WHOLE, shelf_mb=1)
    async with shelf_at(tmp_path / "j", options) as (journal, shelf):
        text = " ".join(f"word{number}" for number in range(3000))
        for number in range(60):
            await say(journal, shelf, **{f"g{number}": f"{text} number{number}x"})
        kept = {one.rollout_id for one in await rows(shelf) if one.has_content}
        assert "g59.0" in kept
        assert "g0.0" not in kept
        assert set(await found(shelf, "word7 word8")) == kept
        assert await shelf.read(search.count) == len(kept)
        assert await found(shelf, "number0x") == []
        assert await found(shelf, "number59x") == ["g59.0"]
        first, *_ = await shelf.read(search._indexes)
        assert first[0] > 0


async def test_a_shelf_from_before_the_search_is_kept_and_searched_from_now_on(
    tmp_path: Path,
) -> None:
    async with shelf_at(tmp_path / "j") as (journal, shelf):
        await say(journal, shelf, old=ERROR)
    with closing(sqlite3.connect(tmp_path / "j.shelf")) as db:
        search.drop_before(db, None)
        db.commit()
    async with shelf_at(tmp_path / "j") as (journal, shelf):
        assert len(await rows(shelf)) == 1
        assert await found(shelf, "unable") == []
        assert await shelf.read(search.count) == 0
        await say(journal, shelf, new=ERROR)
        assert await found(shelf, "unable") == ["new.0"]


async def test_without_fts5_the_shelf_works_and_a_search_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "is_available", lambda: False)
    options = ShelfOptions(shelf_mb=1, shelf_sample=1)
    async with shelf_at(tmp_path / "j", options) as (journal, shelf):
        await say(journal, shelf, a=ERROR)
        assert (await rows(shelf))[0].has_content
        with pytest.raises(InvalidRequest, match="lacks FTS5"):
            await found(shelf, "unable")


async def test_a_service_finds_prompts_replies_and_errors(client: AsyncRolloutClient) -> None:
    groups = [scored("g0", 0, 1), scored("g1", None, 0.5)]
    await client.submit(groups)
    await client.wait([one for group in groups for one in group.rollout_ids()], 60)
    await client.acknowledge(["g0", "g1"])

    async def places(text: str) -> list[str | None]:
        answer = await client.rollouts(RolloutQuery(text=text, count=True))
        assert answer.matches == len(answer.rollouts)
        assert "ended rollouts is searched" in answer.notice
        return [None if row.excerpt is None else row.excerpt.place for row in answer.rollouts]

    await until(partial(places, "go on"), lambda found: found == ["prompt"] * 4)
    assert await places("command: cat secret") == ["turn 1"] * 4
    assert await places("as it should") == ["error"]
    found = await client.rollouts(
        RolloutQuery(text="secret", reward_min=0.5, sort=RolloutSort.WORST)
    )
    assert [row.rollout_id for row in found.rollouts] == ["g1.1", "g0.1"]
    assert [row.group_id for row in (await client.groups(GroupQuery(text="should"))).groups] == [
        "g1"
    ]
    with pytest.raises(ValueError, match="a letter or a digit"):
        RolloutQuery(text="?!")
