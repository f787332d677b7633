"""Ended rollouts of every kind for a shelf next to a real journal, without a service."""

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.journal.tables import AcceptedRow, EndedRow, Retention
from prorl_service.schemas import (
    Blame,
    ErrorInfo,
    Figures,
    FinishReason,
    Group,
    Rollout,
    RolloutState,
)
from prorl_service.schemas.arrays import PACKED
from prorl_service.schemas.views import RolloutRow, RowFilter
from prorl_service.shelf import queries
from prorl_service.shelf.policy import ShelfOptions
from prorl_service.shelf.store import Shelf
from prorl_service.shelf.tables import ContentState
from tests import builders

WHOLE = ShelfOptions(shelf_sample=1)
ROWS_ONLY = ShelfOptions(shelf_sample=0, shelf_first=0)


@asynccontextmanager
async def shelf_at(
    path: Path | None,
    options: ShelfOptions = WHOLE,
    *,
    run: str = "run",
    retention: Retention = Retention(),
) -> AsyncIterator[tuple[Journal, Shelf]]:
    journal = Journal(path, retention)
    shelf = Shelf.open(path, run, options)
    assert shelf is not None
    journal.follow(shelf)
    async with journal:
        yield journal, shelf
    shelf.close()


def submitted(
    group_id: str = "g", n: int = 1, *, agent: str = "math", task_id: str = "t", text: str = "Go."
) -> Group:
    task = builders.task(task_id, text, agent=agent)
    return Group(group_id=group_id, task=task, n=n)


def ended(
    group: Group,
    index: int = 0,
    *,
    state: RolloutState = RolloutState.DONE,
    reward: float | None = None,
    blame: Blame | None = None,
    kind: str = "Oops",
    reason: FinishReason = FinishReason.FINISHED,
    version: int | None = 0,
    oldest: int | None = None,
    created_at: float = 1.0,
    output: str = "",
) -> Rollout:
    error = None if blame is None else ErrorInfo(kind=kind, blame=blame, message="it broke")
    return builders.rollout(
        group.rollout_id(index),
        *([] if version is None else [builders.segment((1,), version)]),
        turns=1,
        text=f"Yes.{output}",
        finish_reason=reason,
        task_id=group.task.task_id,
        agent=group.task.agent,
        state=state,
        attempt=1,
        error=error,
        reward=reward,
        oldest_policy_version=version if oldest is None else oldest,
        newest_policy_version=version,
        created_at=created_at,
    )


def row(rollout: Rollout) -> EndedRow:
    summary = rollout.model_copy(update={"trajectory": None, "report": None})
    return EndedRow(
        rollout.rollout_id,
        rollout.group_id,
        rollout.attempt,
        rollout.state,
        summary.model_dump_json().encode(),
        rollout.model_dump_json(context=PACKED).encode(),
        Figures.of(rollout.trajectory),
    )


async def accept(journal: Journal, *groups: Group, created_at: float = 1.0) -> None:
    rows = [
        AcceptedRow(one.group_id, one.n, one.model_dump_json().encode(), created_at)
        for one in groups
    ]
    assert await journal.accept(rows)


async def end(journal: Journal, *rollouts: Rollout) -> None:
    await asyncio.gather(*(journal.end(row(one)) for one in rollouts))


async def shelved(journal: Journal, shelf: Shelf, group: Group, **values: Any) -> None:
    """Ends the whole group with the same values, acknowledges it, and waits for its copies."""
    await accept(journal, group, created_at=values.get("created_at", 1.0))
    await end(journal, *(ended(group, index, **values) for index in range(group.n)))
    await journal.forget([group.group_id])
    await settled(shelf)


async def settled(shelf: Shelf) -> None:
    """Waits until all copies are made, for as long as the test's own timeout."""

    def is_awaited(db: sqlite3.Connection) -> bool:
        query = "SELECT 1 FROM rollouts WHERE content = ?"
        return db.execute(query, (ContentState.AWAITED,)).fetchone() is not None

    while await shelf.read(is_awaited) or not shelf._shelving.is_done:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def until(shelf: Shelf, holds: Callable[[Sequence[RolloutRow]], bool]) -> None:
    while not holds(await rows(shelf)):  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def rows(shelf: Shelf, **wanted: Any) -> list[RolloutRow]:
    found = RowFilter.model_validate(wanted)
    return await shelf.read(lambda db: queries.rollouts(db, found, None, 10_000))


async def whole(shelf: Shelf) -> set[str]:
    """Returns ids of rollouts whose content is readable, not just listed."""

    def read(db: sqlite3.Connection) -> set[str]:
        listed = [one for one in queries.rollouts(db, RowFilter(), None, 10_000) if one.has_content]
        for one in listed:
            found = queries.find(db, one.rollout_id, one.run, "")
            assert found is not None
            assert found.packed is not None
            assert Rollout.model_validate_json(found.packed).rollout_id == one.rollout_id
            assert found.group().group_id == one.group_id
        return {one.rollout_id for one in listed}

    return await shelf.read(read)


def later(monkeypatch: Any, seconds: float) -> None:
    """Adds seconds to the service's uptime."""
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + seconds)


def noise(size: int) -> str:
    """Returns text that hardly compresses."""
    return os.urandom(size // 2).hex()
