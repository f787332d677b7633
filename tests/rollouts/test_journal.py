"""The journal by itself: results that are on disk once it says so, and errors of its files."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_service.errors import JournalError
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.rollouts.journal.file import APPLICATION_ID
from prorl_service.rollouts.journal.tables import Retention
from prorl_service.schemas import RolloutState
from tests.rollouts.journals import accepted, ended


async def test_a_write_requested_just_before_the_close_is_written(tmp_path: Path) -> None:
    async with Journal(tmp_path / "j") as journal:
        await journal.accept([accepted("a", n=1)])
        last = journal.end(ended("a"))
    await last
    async with Journal(tmp_path / "j") as journal:
        assert await journal.read(tables.count_ended) == {RolloutState.DONE: 1}


@pytest.mark.parametrize("jump_s", [8 * 86_400.0, -8 * 86_400.0])
async def test_a_wall_clock_that_jumps_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    for name in "ab":  # with a restart in between
        async with Journal(tmp_path / "j") as journal:
            await journal.accept([accepted(f"{name}{i}", n=1) for i in range(3)])
            for i in range(3):
                await journal.end(ended(f"{name}{i}"))
            assert (await journal.read(tables.count_ended)).total() == (3 if name == "a" else 6)
        clock = time.time
        monkeypatch.setattr(time, "time", lambda clock=clock: clock() + jump_s)


async def test_results_expire_by_the_time_that_services_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = 3600.0
    for name in "abc":
        async with Journal(tmp_path / "j", Retention(keep_hours=1.5)) as journal:
            await journal.accept([accepted(name, n=1)])
            await journal.end(ended(name))
            kept = [
                one for one in "abc" if await journal.read(tables.answer, f"{one}.0") is not None
            ]
            now = time.monotonic
            monkeypatch.setattr(time, "monotonic", lambda now=now: now() + hour)
        monkeypatch.setattr(time, "monotonic", now)
    assert kept == ["b", "c"]


@pytest.mark.slow
async def test_a_file_is_used_by_one_service_only(tmp_path: Path) -> None:
    async with Journal(tmp_path / "j"):
        with pytest.raises(JournalError, match="is in use"):
            Journal(tmp_path / "j")


def _of_version(version: int, path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (a)")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {version}")


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (a)")


def _damaged(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (partial(_of_version, 3), "has version 3"),  # older than any release
        (partial(_of_version, 77), "has version 77"),
        (_foreign, "not a journal"),
        (_damaged, "is damaged"),
    ],
)
def test_an_unusable_file_is_refused_with_the_reason(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(tmp_path / "j")
    with pytest.raises(JournalError, match=message):
        Journal(tmp_path / "j")


operations = st.lists(
    st.tuples(
        st.sampled_from(["accept", "begin", "end", "forget", "restart"]),
        st.integers(0, 3),
        st.integers(0, 1),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=60)
@given(operations)
def test_any_history_is_read_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int, int]]
) -> None:
    asyncio.run(_check(tmp_path_factory.mktemp("journal") / "j", history))


async def _check(path: Path, history: list[tuple[str, int, int]]) -> None:
    """Checks a journal against a model: each group's ended indices and attempts of begun ones."""
    model: dict[str, tuple[set[int], dict[int, int]]] = {}
    journal = await Journal(path).__aenter__()
    for operation, number, index in history:
        group_id = f"g{number}"
        over, begun = model.get(group_id, (set(), {}))
        if operation == "accept":
            assert await journal.accept([accepted(group_id)]) == (group_id not in model)
            model.setdefault(group_id, (set(), {}))
        elif operation == "restart":
            await journal.__aexit__()
            journal = await Journal(path).__aenter__()
        elif operation == "forget":
            forgotten = await journal.forget([group_id])
            assert forgotten.total() == (2 if len(over) == 2 else 0)
            if len(over) == 2:
                del model[group_id]
        elif group_id in model and index not in over:
            begun[index] = begun.get(index, 0) + 1
            await journal.begin(f"{group_id}.{index}", begun[index])
            if operation == "end":
                await journal.end(ended(group_id, index))
                over.add(index)
                del begun[index]
    told = await journal.read(tables.unfinished)
    assert [(one.ended, one.attempts) for one in told] == [
        ({f"{name}.{i}" for i in over}, {f"{name}.{i}": tried for i, tried in begun.items()})
        for name, (over, begun) in model.items()
        if len(over) < 2
    ]
    ends = sum(len(over) for over, _ in model.values())
    assert (await journal.read(tables.count_ended)).total() == ends
    await journal.__aexit__()
