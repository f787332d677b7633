"""Lists of groups, rollouts and versions: those in flight from memory, ended ones from the shelf.

Memory is read first. A rollout that ends between the two reads is found by both and listed once;
none is missed, since the shelf has every rollout that had ended for the event loop (`Shelf.read`).
So pages never omit or repeat a rollout, whatever ends or arrives between them.
"""

import sqlite3
from collections.abc import Sequence
from typing import TypeVar

from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.schemas import TERMINAL_STATES
from prorl_service.schemas.training import Runs, Training
from prorl_service.schemas.views import (
    GroupQuery,
    GroupRow,
    GroupRows,
    RolloutQuery,
    RolloutRow,
    RolloutRows,
    RolloutSort,
    RowFilter,
    TaskQuery,
    TaskRow,
    TaskRows,
)
from prorl_service.shelf import queries, search, task_rows, training
from prorl_service.shelf.live import LiveRows
from prorl_service.shelf.rows import Key, key_of, key_of_group, sorted_by
from prorl_service.shelf.store import Shelf

Row = TypeVar("Row", RolloutRow, GroupRow)

MOST_SORTED = 2**16
"""Most rollouts in flight that are sorted or counted."""
OFF = "the shelf is off (--shelf-mb 0, or see the log): ended rollouts are not listed"


class Lists:
    def __init__(
        self, run: str, executor: RolloutExecutor, journal: Journal, shelf: Shelf | None
    ) -> None:
        """`shelf` is None if it is off."""
        self.live = LiveRows(executor, run)
        self._run = run
        self._journal = journal
        self.shelf = shelf

    @property
    def notice(self) -> str:
        """What lists may lack and why; empty if they are complete."""
        if self.shelf is None:
            return OFF
        return self.shelf.failure or ""

    async def _notice_of(self, query: RowFilter) -> str:
        if query.text is None or self.shelf is None:
            return self.notice
        searched = await self.shelf.read(search.count)
        known = f"the text of {searched:,} ended rollouts is searched: the shelf has them whole"
        return "; ".join(filter(None, (known, self.notice)))

    async def rollouts(self, query: RolloutQuery) -> RolloutRows:
        """Raises `InvalidRequest`, `ShelfError`, `JournalError`."""
        after = None if query.before is None else Key.of_cursor(query.before)
        found = await self._rollouts(query, after, query.limit + 1, query.sort)
        page = found[: query.limit]
        has_next = len(found) > len(page) and query.sort is RolloutSort.NEWEST
        return RolloutRows(
            rollouts=await self._with_journal(page),
            next=key_of(page[-1]).cursor() if has_next else None,
            notice=await self._notice_of(query),
            matches=await self._count(query) if query.count else None,
        )

    async def _count(self, query: RolloutQuery) -> int:
        """Counts a rollout that ended while its siblings run once, as the shelf knows it."""
        rows = await self.live.rollouts(query, None, MOST_SORTED)
        if self.shelf is None:
            return len(rows)
        running = sum(row.state not in TERMINAL_STATES for row in rows)
        return running + await self.shelf.read(lambda db: queries.count(db, query))

    async def siblings(self, group_id: str, run: str) -> list[RolloutRow]:
        """Returns all known rows of a group's rollouts, by index."""
        wanted = RowFilter(run=run, group_id=group_id)
        found = await self._with_journal(await self._rollouts(wanted, None, limit=2**16))
        latest = max((row.created_at for row in found), default=None)
        return [row for row in found if row.created_at == latest]

    async def _rollouts(
        self,
        wanted: RowFilter,
        after: Key | None,
        limit: int,
        sort: RolloutSort = RolloutSort.NEWEST,
    ) -> list[RolloutRow]:
        most = limit if sort is RolloutSort.NEWEST else MOST_SORTED
        rows = await self.live.rollouts(wanted, after, most)
        if self.shelf is not None:
            rows += await self.shelf.read(
                lambda db: queries.rollouts(db, wanted, after, limit, sort)
            )
        unique = {(row.run, key_of(row)): row for row in rows}
        return sorted_by(unique.values(), sort)[:limit]

    async def groups(self, query: GroupQuery) -> GroupRows:
        """Raises `InvalidRequest`, `ShelfError`, `JournalError`."""
        after = None if query.before is None else Key.of_cursor(query.before)
        found = await self._groups(query, after, query.limit + 1)
        page = found[: query.limit]
        return GroupRows(
            groups=await self._with_journal([self.live.filled(row) for row in page]),
            next=key_of_group(page[-1]).cursor() if len(found) > len(page) else None,
            notice=await self._notice_of(query),
        )

    async def _groups(self, query: GroupQuery, after: Key | None, limit: int) -> list[GroupRow]:
        live = await self.live.groups(query, query.outcome, after, limit)

        def read(db: sqlite3.Connection) -> list[GroupRow]:
            ended = queries.groups(db, query, query.outcome, after, limit)
            unique = {(row.run, key_of_group(row)): row for row in ended}
            for row in live:  # an earlier process may have seen the end of some of its rollouts
                key = (row.run, key_of_group(row))
                unique[key] = unique.get(key) or _shelved(db, row) or row
            rows = sorted(unique.values(), key=lambda one: (one.created_at, one.group_id))
            return rows[::-1][:limit]

        return live if self.shelf is None else await self.shelf.read(read)

    async def training(self, run: str | None, agent: str | None) -> Training:
        """Returns the rows of `run`, or of this run if None. Raises `ShelfError`."""
        run = run or self._run
        rows = []
        if self.shelf is not None:
            rows = await self.shelf.read_run(run, lambda db: training.versions(db, run, agent))
        return Training(run=run, versions=rows, notice=self.notice)

    async def runs(self) -> Runs:
        """Raises `ShelfError`."""
        return Runs(runs=[self._run] if self.shelf is None else await self.shelf.runs())

    async def tasks(self, query: TaskQuery) -> TaskRows:
        """Raises `ShelfError`."""
        run = query.run or self._run
        rows: list[TaskRow] = []
        count = 0
        if self.shelf is not None:
            rows, count = await self.shelf.read_run(run, lambda db: task_rows.tasks(db, run, query))
        return TaskRows(run=run, tasks=rows, matches=count, notice=self.notice)

    # --- content that the journal has -----------------------------------------------------------

    async def _with_journal(self, rows: Sequence[Row]) -> list[Row]:
        """Marks rows of unacknowledged groups as having content: the journal has all of it."""
        wanted = {row.group_id for row in rows if self._may_be_there(row)}
        known = await self._journal.read(tables.known, wanted) if wanted else set()
        here = {"has_content": True}
        return [
            row.model_copy(update=here)
            if self._may_be_there(row) and row.group_id in known
            else row
            for row in rows
        ]

    def _may_be_there(self, row: RolloutRow | GroupRow) -> bool:
        return not row.has_content and row.run == self._run


def _shelved(db: sqlite3.Connection, row: GroupRow) -> GroupRow | None:
    """Returns the shelf's row of the group, or None."""
    found = queries.groups(db, RowFilter(run=row.run, group_id=row.group_id), (), None, 1)
    return found[0] if found and found[0].created_at == row.created_at else None
