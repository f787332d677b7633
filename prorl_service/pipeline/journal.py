"""What the service has accepted and what came of it: one SQLite file, written before it is told.

The one source of truth for groups accepted and rollouts ended; the pipeline holds in memory only
what is under way. Knows rows and bytes, nothing of stages or tasks. Without a file it is kept in
memory, by the same code, and ends with the process.

One thread owns the connection and works through what is asked for in order. All writes that wait
when it is free become one transaction (group commit), which is on disk when their futures are done.
While the file cannot be written, submissions are refused, ended rollouts are kept for later, and a
write is tried every `RETRY_S` until one succeeds.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Self, TypeVar

from prorl_service.errors import JournalError
from prorl_service.pipeline import journal_tables as tables
from prorl_service.pipeline.journal_tables import (
    AcceptedRow,
    EndedRow,
    Retention,
    UnfinishedGroup,
)

log = logging.getLogger(__name__)

Read = TypeVar("Read")

RETRY_S = 1.0
"""How often a write is tried while none succeeds."""


class _Kind(Enum):
    READ = "read"
    WRITE = "write"
    """Refused if it cannot be written."""
    KEPT = "kept"
    """A write that is tried until it succeeds or the journal is closed."""


@dataclass(frozen=True, slots=True)
class _Operation:
    kind: _Kind
    work: Callable[[sqlite3.Connection], Any]
    future: "asyncio.Future[Any]"
    outcome: Any = None


class Journal:
    """Opened when made; used by one event loop, between `async with` and its end.

    Futures of `begin`, `end` and `write` cannot fail: they are cancelled if they are not written
    when the journal is closed. All others may raise `JournalError`.
    """

    def __init__(self, path: Path | None = None, retention: Retention = Retention()) -> None:
        """Raises `JournalError`: the file is in use, damaged, of another version or of no use."""
        self._db = tables.open_file(path)
        self._name = "the journal in memory" if path is None else f"the journal {path}"
        self._retention = retention
        self._asked: list[_Operation] = []
        """In this turn of the event loop. To wake the thread costs more than to ask."""
        self._operations: queue.SimpleQueue[list[_Operation] | None] = queue.SimpleQueue()
        """None ends the thread."""
        self._thread = threading.Thread(target=self._serve, name="journal", daemon=True)
        self._is_closed = False
        self.failure: str | None = None
        """Why it cannot be written, while it cannot."""
        self.writable = asyncio.Event()
        self.writable.set()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """What can be written is."""
        self._is_closed = True
        self._hand_over()
        self._operations.put(None)
        await asyncio.to_thread(self._thread.join)

    # --- writing --------------------------------------------------------------------------------

    def accept(self, groups: Iterable[AcceptedRow]) -> "asyncio.Future[bool]":
        """All groups, or none and False if one of them is there already."""
        return self._ask(_Kind.WRITE, lambda db: tables.accept(db, groups))

    def begin(self, rollout_id: str, group_id: str, attempt: int) -> "asyncio.Future[None]":
        return self._ask(_Kind.KEPT, lambda db: tables.begin(db, rollout_id, group_id, attempt))

    def end(self, row: EndedRow) -> "asyncio.Future[Counter[str]]":
        """Once for each rollout of a group. Its last makes room; the future is as `forget`'s."""
        return self._ask(_Kind.KEPT, lambda db: tables.end(db, row, self._retention))

    def forget(self, group_ids: Iterable[str]) -> "asyncio.Future[Counter[str]]":
        """Those that have ended. The future: how many of their rollouts were in which state."""
        return self._ask(_Kind.WRITE, lambda db: tables.forget(db, group_ids))

    def remember(self, name: str, value: bytes) -> "asyncio.Future[None]":
        return self._ask(_Kind.WRITE, lambda db: tables.remember(db, name, value))

    def write(self, work: Callable[[sqlite3.Connection], None]) -> "asyncio.Future[None]":
        """For tables that are others' to know. Cannot fail, as `begin` and `end`."""
        return self._ask(_Kind.KEPT, work)

    # --- reading --------------------------------------------------------------------------------

    def find(self, group_ids: Iterable[str]) -> "asyncio.Future[dict[str, bytes]]":
        """The requests of those that were accepted."""
        return self._ask(_Kind.READ, lambda db: tables.find(db, group_ids))

    def summaries(self, rollout_ids: Iterable[str]) -> "asyncio.Future[dict[str, bytes]]":
        """Of those that have ended."""
        return self._ask(_Kind.READ, lambda db: tables.summaries(db, rollout_ids))

    def answer(self, rollout_id: str) -> "asyncio.Future[bytes | None]":
        """None: it has not ended."""
        return self._ask(_Kind.READ, lambda db: tables.answer(db, rollout_id))

    def recall(self, name: str) -> "asyncio.Future[bytes | None]":
        """None: it was never remembered."""
        return self._ask(_Kind.READ, lambda db: tables.recall(db, name))

    def unfinished(self) -> "asyncio.Future[list[UnfinishedGroup]]":
        return self._ask(_Kind.READ, tables.unfinished)

    def count_ended(self) -> "asyncio.Future[Counter[str]]":
        return self._ask(_Kind.READ, tables.count_ended)

    def read(self, work: Callable[[sqlite3.Connection], Read]) -> "asyncio.Future[Read]":
        return self._ask(_Kind.READ, work)

    def _ask(self, kind: _Kind, work: Callable[[sqlite3.Connection], Any]) -> "asyncio.Future[Any]":
        future = self._loop.create_future()
        if self._is_closed:
            future.cancel()
        else:
            if not self._asked:
                self._loop.call_soon(self._hand_over)
            self._asked.append(_Operation(kind, work, future))
        return future

    def _hand_over(self) -> None:
        asked, self._asked = self._asked, []
        self._operations.put(asked)

    # --- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        unwritten: list[_Operation] = []
        try:
            is_open = True
            while is_open:
                operations, is_open = self._take(wait_s=RETRY_S if self.failure else None)
                reads = [one for one in operations if one.kind is _Kind.READ]
                writes = [one for one in operations if one.kind is not _Kind.READ]
                unwritten = self._write(unwritten + writes)
                for one in reads:
                    self._read(one)
            if unwritten:
                log.error("%s: %d writes are lost: %s", self._name, len(unwritten), self.failure)
        except Exception as bug:  # the boundary: nobody would notice a thread that ended
            log.critical("%s: its thread ended", self._name, exc_info=True)
            self._report(f"{self._name}: its thread ended: {bug!r}")
        finally:
            with suppress(sqlite3.Error):
                self._db.close()
            self._loop.call_soon_threadsafe(_cancel, unwritten)

    def _take(self, wait_s: float | None) -> tuple[list[_Operation], bool]:
        """All operations that wait, once there is one or `wait_s` is over; False after the last."""
        operations: list[_Operation] = []
        with suppress(queue.Empty):
            asked = self._operations.get(timeout=wait_s)
            while asked is not None:
                operations += asked
                asked = self._operations.get_nowait()
            return operations, False
        return operations, True

    def _write(self, operations: list[_Operation]) -> list[_Operation]:
        """As one transaction. Returns those that are to be tried again."""
        if not operations and self.failure is None:
            return []
        try:
            self._db.execute("BEGIN IMMEDIATE")
            if not operations:
                self._db.execute(f"PRAGMA user_version = {tables.VERSION}")  # can it be written?
            done = [replace(one, outcome=one.work(self._db)) for one in operations]
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            return self._refuse(operations, error)
        if self.failure is not None:
            log.warning("%s can be written again", self._name)
            self._report(None)
        self._resolve(done)
        return []

    def _refuse(self, operations: list[_Operation], error: sqlite3.Error) -> list[_Operation]:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        if self.failure is None:
            log.error("%s cannot be written: %s", self._name, error)
        self._report(f"{self._name} cannot be written: {error}")
        kept = [one for one in operations if one.kind is _Kind.KEPT]
        refused = JournalError(
            str(self.failure), hint="is its disk full? Nothing is accepted until it can be written"
        )
        self._resolve([replace(one, outcome=refused) for one in operations if one not in kept])
        return kept

    def _read(self, operation: _Operation) -> None:
        outcome: Any
        try:
            outcome = operation.work(self._db)
        except sqlite3.Error as error:
            log.exception("%s cannot be read", self._name)
            outcome = JournalError(f"{self._name} cannot be read: {error}")
        self._resolve([replace(operation, outcome=outcome)])

    def _report(self, failure: str | None) -> None:
        self.failure = failure
        self._loop.call_soon_threadsafe(
            self.writable.set if failure is None else self.writable.clear
        )

    def _resolve(self, operations: list[_Operation]) -> None:
        if operations:
            self._loop.call_soon_threadsafe(_resolve, operations)


def _resolve(operations: Iterable[_Operation]) -> None:
    for one in operations:
        if one.future.done():  # who asked was cancelled
            continue
        if isinstance(one.outcome, Exception):
            one.future.set_exception(one.outcome)
        else:
            one.future.set_result(one.outcome)


def _cancel(operations: Iterable[_Operation]) -> None:
    for one in operations:
        one.future.cancel()
