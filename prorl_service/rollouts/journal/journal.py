"""Accepted groups and their results: one SQLite file, written before they are reported.

The single source of truth for accepted groups and ended rollouts; the pipeline holds in memory only
what is in flight. Knows rows and bytes, nothing of stages or tasks. Without a file the same code
keeps the journal in memory, and it ends with the process.

While the file cannot be written, submissions are refused, ended rollouts are kept for later, and
writes are retried until one succeeds. Groups are forgotten immediately; their content is deleted
later, between other work.
"""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, TypeVarTuple

from prorl_service.errors import JournalError
from prorl_service.rollouts.journal import owner, tables
from prorl_service.rollouts.journal.file import open_file, unusable
from prorl_service.rollouts.journal.follower import Follower
from prorl_service.rollouts.journal.tables import (
    AcceptedRow,
    EndedRow,
    Retention,
)
from prorl_service.rollouts.journal.threads import DISK_HINT, Operation, Reader, Writer
from prorl_service.utils.tasks import TaskOwner

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

FORGET_AT_ONCE = 512
"""Groups forgotten in one transaction."""


class Journal:
    """A journal, opened on construction and used by one event loop inside `async with`.

    Futures of `begin`, `end` and `write` raise `JournalError` only if what is to be written is at
    fault. They are cancelled if the journal is closed before they are written. All others may raise
    `JournalError`.
    """

    def __init__(self, path: Path | None = None, retention: Retention = Retention()) -> None:
        """Raises `JournalError` if the file is in use, damaged, of another version or unusable."""
        self.path = path
        """File of the journal; None if it is in memory."""
        self._file = open_file(path)
        self.name = "the journal in memory" if path is None else f"the journal {path}"
        self._retention = retention
        with self._opening():
            self._began_at = time.monotonic() - tables.uptime(self._file.writer)
        self._writer = Writer(self, self._file.writer)
        self._reader = Reader(self, self._file.reader) if self._file.reader else None
        self._is_closed = self._is_used = False
        self.background = TaskOwner()
        """Owner of work that its callers have left; see `unless_failing`."""
        self.death: str | None = None
        """Reason why the journal will not work again in this process."""
        self.failure: str | None = None
        """Reason why it cannot be written; None while it can."""
        self.writable = asyncio.Event()
        self.writable.set()
        self._failing = asyncio.Event()

    def claim(self, run: str | None, *, resume: bool) -> str:
        """See `owner.claim`. Call it before `async with`, if at all."""
        with self._opening():
            return owner.claim(self._file.writer, self.name, run, resume=resume)

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Closes the file if it cannot be used. Raises `JournalError` for one that is damaged."""
        try:
            yield
        except BaseException as error:
            self._file.close()
            if isinstance(error, sqlite3.Error | ValueError | LookupError | TypeError):
                raise unusable(self.name, error) from error
            raise

    def parsed(self, parse: Callable[[], Result]) -> Result:
        """Returns what `parse` makes of the journal's content. Raises `JournalError` if it cannot,
        since the file is damaged."""
        try:
            return parse()
        except (ValueError, LookupError, TypeError) as error:
            raise unusable(self.name, error) from error

    def follow(self, follower: Follower) -> None:
        """Call it before `async with`, if at all."""
        self._writer.follower = follower

    async def __aenter__(self) -> Self:
        self._writer.start()
        if self._reader is not None:
            self._reader.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Writes what can be written. A new file that nothing was written to is removed."""
        is_unused = self._file.is_new and not self._is_used
        if self.death is None:
            uptime_s = self._uptime_s()
            self._ask(lambda db: tables.keep_uptime(db, uptime_s), is_retried=True)
        self._is_closed = True
        await self._writer.close()
        if self._reader is not None:
            await self._reader.close()
        await self.background.close()
        self._file.close(remove=is_unused)

    def _uptime_s(self) -> float:
        """Returns the total uptime of this journal's services. Ages are measured by it, since it
        never jumps."""
        return time.monotonic() - self._began_at

    # --- writing --------------------------------------------------------------------------------

    def accept(self, groups: Sequence[AcceptedRow]) -> "asyncio.Future[bool]":
        """Writes all groups; or none, with the result False, if one of them is there already."""
        return self._ask(lambda db: tables.accept(db, groups))

    def begin(self, rollout_id: str, attempt: int) -> "asyncio.Future[None]":
        begun = self._ask(lambda db: tables.begin(db, rollout_id, attempt), is_retried=True)
        begun.add_done_callback(_seen)
        return begun

    def end(self, row: EndedRow) -> "asyncio.Future[Counter[str]]":
        """Writes the end of a rollout, once for each. The last of a group makes room: the result is
        that of `forget`."""
        uptime_s = self._uptime_s()
        return self._ask(
            lambda db: tables.end(db, row, self._retention, uptime_s), is_retried=True, ended=row
        )

    async def forget(self, group_ids: Sequence[str]) -> Counter[str]:
        """Forgets those that have ended. Returns how many of their rollouts were in which state."""
        states = Counter[str]()
        for start in range(0, len(group_ids), FORGET_AT_ONCE):
            some = group_ids[start : start + FORGET_AT_ONCE]
            states += await self._ask(partial(tables.forget, group_ids=some))
        return states

    def remember(self, name: str, value: bytes) -> "asyncio.Future[None]":
        return self._ask(lambda db: tables.remember(db, name, value))

    def write(
        self,
        work: Callable[[sqlite3.Connection, *Arguments], Result],
        *arguments: *Arguments,
        is_retried: bool = True,
    ) -> "asyncio.Future[Result]":
        """Runs `work`, which writes what other modules define, and returns its result."""
        return self._ask(lambda db: work(db, *arguments), is_retried=is_retried)

    # --- reading --------------------------------------------------------------------------------

    def read(
        self,
        work: Callable[[sqlite3.Connection, *Arguments], Result],
        *arguments: *Arguments,
    ) -> "asyncio.Future[Result]":
        """Runs `work`, which sees everything written before this call, such as a function of
        `tables`, and returns its result. Writes do not delay it."""
        return self._ask(lambda db: work(db, *arguments), is_read=True)

    def _ask(
        self,
        work: Callable[[sqlite3.Connection], Any],
        *,
        is_retried: bool = False,
        is_read: bool = False,
        ended: EndedRow | None = None,
    ) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        self._is_used |= not is_read
        if self._is_closed or (self.death is not None and is_retried):
            future.cancel()
        elif self.death is not None:
            future.set_exception(JournalError(self.death, retryable=False))
        else:
            thread = self._reader if is_read and self._reader is not None else self._writer
            thread.ask(Operation(work, future, is_retried, ended=ended))
        return future

    # --- failures -------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """Raises `JournalError`."""
        if self.failure is not None:
            raise JournalError(self.failure, hint=DISK_HINT)

    async def unless_failing(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns the result of `work`, which waits for writes that are kept.

        Raises `JournalError` as soon as the journal cannot be written; `work` continues.
        """
        task = asyncio.create_task(work, name=f"work that waits for {self.name}")
        failing = asyncio.create_task(self._failing.wait())
        try:
            while not task.done():
                await asyncio.wait((task, failing), return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    self.check_writable()
        except BaseException:
            self.background.adopt(task)
            raise
        finally:
            failing.cancel()
        return task.result()

    def set_failure(self, failure: str | None) -> None:
        self.failure = self.death or failure
        if self.failure is None:
            self.writable.set()
            self._failing.clear()
        else:
            self.writable.clear()
            self._failing.set()

    def died(self, death: str) -> None:
        self.death = self.death or death
        self.set_failure(death)


def _seen(future: "asyncio.Future[Any]") -> None:
    """Marks the exception as retrieved, since the caller may have left."""
    if not future.cancelled():
        future.exception()
