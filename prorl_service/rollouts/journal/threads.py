"""The journal's threads: a writer and a reader, each with its own connection.

All writes that wait when the writer is free become one transaction (group commit), which is on
disk when their futures are done. A write that SQLite refuses for good fails alone. While the file
cannot be written, kept writes are retried every `RETRY_S`, and the others are refused. Between
writes the writer tidies: it deletes forgotten content and gives room back to the disk, in slices
too short to delay writes much.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from prorl_service.errors import JournalError
from prorl_service.rollouts.journal import tables
from prorl_service.rollouts.journal.file import DAMAGED_HINT, transaction
from prorl_service.rollouts.journal.follower import Follower
from prorl_service.rollouts.journal.seals import is_damage

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Seconds between attempts to write while the file cannot be written."""
SLICE_S = 0.02
"""Longest time of tidying without a pause, in seconds."""
PAUSE_S = 0.02
"""Seconds between slices while no operation waits."""
BUSY_PAUSE_S = 0.2
"""Seconds between slices while operations wait."""
SPARE_PAGES = 1024
"""Free pages that are kept, since they are soon used again."""

DISK_HINT = "is its disk full? Nothing is accepted until it can be written"
REFUSED_FOR_GOOD = (
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_MISUSE,
    sqlite3.SQLITE_RANGE,
)


@dataclass(frozen=True, slots=True)
class Operation:
    work: Callable[[sqlite3.Connection], Any]
    future: "asyncio.Future[Any]"
    is_retried: bool = False
    """True for a write that is retried until it succeeds or the journal is closed."""
    outcome: Any = None
    ended: tables.EndedRow | None = None
    """What it ends, for the follower."""


class ThreadOwner(Protocol):
    """The journal, whose methods are called in the event loop."""

    name: str

    def died(self, death: str) -> None:
        """A thread has ended without being closed."""

    def set_failure(self, failure: str | None) -> None:
        """The reason why the file cannot be written; None: it can be written again."""


class JournalThread(ABC):
    """Does operations in order. Used by one event loop, between `start` and `close`."""

    kind: str

    def __init__(self, owner: ThreadOwner, db: sqlite3.Connection) -> None:
        self._owner = owner
        self._name = owner.name
        self._db = db
        self._asked: list[Operation] = []
        """Operations of this turn of the event loop, sent together since waking the thread is
        expensive."""
        self._operations: queue.SimpleQueue[list[Operation] | None] = queue.SimpleQueue()
        """Operations for the thread; None ends it."""
        self._in_hand: list[Operation] = []
        self._thread = threading.Thread(
            target=self._serve, name=f"journal {self.kind}", daemon=True
        )

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def ask(self, operation: Operation) -> None:
        if not self._asked:
            self._loop.call_soon(self._hand_over)
        self._asked.append(operation)

    def _hand_over(self) -> None:
        asked, self._asked = self._asked, []
        self._operations.put(asked)

    async def close(self) -> None:
        """Ends the thread, once it has done what it can."""
        self._hand_over()
        self._operations.put(None)
        await asyncio.to_thread(self._thread.join)

    def _serve(self) -> None:
        """Runs the thread, and reports its death, which would go unnoticed otherwise."""
        try:
            self._work()
        except Exception as bug:
            death = f"{self._name}: its thread ended: {bug!r}"
            log.critical("%s", death)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._bury, death)

    @abstractmethod
    def _work(self) -> None:
        """Does operations until the last."""

    def _bury(self, death: str) -> None:
        left = [*self._in_hand, *self._asked]
        with suppress(queue.Empty):
            while True:
                left += self._operations.get_nowait() or []
        self._owner.died(death)
        refused = JournalError(death, retryable=False)
        _resolve([replace(one, outcome=refused) for one in left if not one.is_retried])
        _cancel([one for one in left if one.is_retried])

    def _take(self, wait_s: float | None) -> bool:
        """Takes all waiting operations in hand, once there are any or after `wait_s`. Returns False
        after the last."""
        with suppress(queue.Empty):
            asked = self._operations.get(timeout=wait_s)
            while asked is not None:
                self._in_hand += asked
                asked = self._operations.get_nowait()
            return False
        return True

    def _tell(self, operations: list[Operation]) -> None:
        if operations:
            self._loop.call_soon_threadsafe(_resolve, operations)


class Reader(JournalThread):
    kind = "reader"

    def _work(self) -> None:
        is_open = True
        while is_open:
            is_open = self._take(None)
            while self._in_hand:
                done = replace(self._in_hand[0], outcome=self._read(self._in_hand[0]))
                del self._in_hand[0]
                self._tell([done])

    def _read(self, operation: Operation) -> Any:
        """Returns what the operation read in one transaction, or its exception."""
        try:
            self._db.execute("BEGIN")
            return operation.work(self._db)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            log.error("%s cannot be read: %s", self._name, error)
            hint = DAMAGED_HINT if is_damage(error) else ""
            return JournalError(f"{self._name} cannot be read: {error}", hint=hint)
        except Exception as bug:
            return bug
        finally:
            with suppress(sqlite3.Error):  # that of a statement which failed fails, too
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")


class Writer(JournalThread):
    """Thread that writes, and also reads if there is no reader, as in memory."""

    kind = "writer"

    def __init__(self, owner: ThreadOwner, db: sqlite3.Connection) -> None:
        super().__init__(owner, db)
        self.follower: Follower | None = None
        self._failure: str | None = None
        self._is_tidy = False
        """True if nothing is left to delete."""
        self._is_followed = False
        """True if the follower has nothing left to do."""
        self._tidied_at = 0.0

    def _work(self) -> None:
        self._db.execute("PRAGMA busy_timeout = 0")  # never wait for the reader
        is_open = True
        while is_open:
            is_open = self._take(self._patience_s())
            self._write()
            if self._failure is None and is_open:
                self._tidy()
        self._followed(lambda follower: follower.finish(self._db))
        if self._in_hand:
            log.error("%s: %d writes are lost: %s", self._name, len(self._in_hand), self._failure)
            self._loop.call_soon_threadsafe(_cancel, self._in_hand)

    def _patience_s(self) -> float | None:
        if self._failure is not None:
            return RETRY_S
        return None if self._is_tidy and self._is_followed else PAUSE_S

    # --- writing --------------------------------------------------------------------------------

    def _write(self) -> None:
        """Writes what is in hand. Leaves in hand what is to be retried."""
        while self._in_hand or self._failure is not None:
            try:
                with transaction(self._db):
                    done = self._do_all()
            except _Unwritable as refused:
                self._in_hand.remove(refused.operation)
                self._tell([replace(refused.operation, outcome=refused.error)])
                continue
            except sqlite3.Error as error:
                self._refuse(error)
                return
            self._in_hand = []
            self._report(None)
            self._tell_all(done)
            with suppress(sqlite3.Error):  # of a damaged page
                self._is_tidy = self._is_tidy and not tables.has_garbage(self._db)

    def _tell_all(self, done: list[Operation]) -> None:
        """The callers first, then the follower."""
        rows = [one.ended for one in done if one.ended is not None]
        if self.follower is None or not rows:
            self._tell(done)
            return
        with self.follower.lock:
            self._tell(done)
            self._followed(lambda follower: follower.ended(self._db, rows))
        self._is_followed = False

    def _followed(self, do: Callable[[Follower], bool | None]) -> bool:
        """What `do` returns; False without a follower. The boundary to it: its bugs cost no
        write."""
        if self.follower is None:
            return False
        try:
            return bool(do(self.follower))
        except Exception:
            log.exception("%s: its follower failed, continuing without it", self._name)
            self.follower = None
            return False

    def _do_all(self) -> list[Operation]:
        """Does all operations in hand. Raises `_Unwritable` if one of them is to blame, not the
        disk."""
        if not self._in_hand:  # can it be written?
            self._db.execute(f"PRAGMA user_version = {tables.VERSION}")
        done = []
        for one in self._in_hand:
            try:
                done.append(replace(one, outcome=one.work(self._db)))
            except Exception as error:
                is_alone = not one.is_retried and is_damage(error)
                if isinstance(error, sqlite3.Error) and not (is_alone or _is_for_good(error)):
                    raise
                raise _Unwritable(one, f"{self._name} refuses the content: {error!r}") from error
        return done

    def _refuse(self, error: sqlite3.Error) -> None:
        if self._failure is None:
            log.error("%s cannot be written: %s", self._name, error)
        self._report(f"{self._name} cannot be written: {error}")
        hint = DAMAGED_HINT if is_damage(error) else DISK_HINT
        refused = JournalError(str(self._failure), hint=hint)
        others = [one for one in self._in_hand if not one.is_retried]
        self._in_hand = [one for one in self._in_hand if one.is_retried]
        self._tell([replace(one, outcome=refused) for one in others])

    def _report(self, failure: str | None) -> None:
        if failure is None and self._failure is not None:
            log.warning("%s can be written again", self._name)
        if failure != self._failure:
            self._failure = failure
            self._loop.call_soon_threadsafe(self._owner.set_failure, failure)

    # --- tidying --------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """Tidies for one slice, if there is something to tidy and the time for it."""
        now = time.monotonic()
        is_busy = not self._operations.empty()
        is_due = not is_busy or now >= self._tidied_at + BUSY_PAUSE_S
        if (self._is_tidy and self._is_followed) or not is_due:
            return

        def is_over() -> bool:
            return time.monotonic() > now + SLICE_S

        may_delete = self._is_followed or self._follow_up(is_over)
        if may_delete and not self._is_tidy:
            self._delete(is_over, is_busy)
        self._tidied_at = time.monotonic()

    def _follow_up(self, is_over: Callable[[], bool]) -> bool:
        """Runs the follower. Returns whether it needs nothing that may be deleted."""
        must_copy = self._followed(lambda follower: follower.copy(self._db, is_over))
        must_tidy = self._followed(lambda follower: follower.tidy(is_over))
        self._is_followed = not must_copy and not must_tidy
        return not must_copy

    def _delete(self, is_over: Callable[[], bool], is_busy: bool) -> None:
        try:
            with transaction(self._db):
                self._is_tidy = not self._slice(is_over, is_busy)
            if self._is_tidy:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            log.warning("%s cannot be tidied: %s", self._name, error)
            self._is_tidy = not is_damage(error) or not self._leave_damaged()

    def _leave_damaged(self) -> bool:
        """Leaves in the file what is to be deleted first. Returns False if it cannot."""
        try:
            with transaction(self._db):
                tables.leave_garbage(self._db)
        except sqlite3.Error:
            return False
        return True

    def _slice(self, is_over: Callable[[], bool], is_busy: bool) -> bool:
        """Tidies until `is_over`; returns whether something is left. Gives room back in quiet
        times."""
        if tables.delete_garbage(self._db, is_over):
            return True
        if tables.free_pages(self._db) < SPARE_PAGES:
            return False
        return is_busy or tables.give_room_back(self._db, is_over)


class _Unwritable(Exception):
    """An operation is itself at fault, so that a retry cannot help."""

    def __init__(self, operation: Operation, reason: str) -> None:
        super().__init__(reason)
        self.operation = operation
        self.error = JournalError(reason, retryable=False)


def _is_for_good(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_MISUSE)
    return code & 0xFF in REFUSED_FOR_GOOD


def _resolve(operations: Iterable[Operation]) -> None:
    for one in operations:
        if one.future.done():  # the caller was cancelled
            continue
        if isinstance(one.outcome, Exception):
            one.future.set_exception(one.outcome)
        else:
            one.future.set_result(one.outcome)


def _cancel(operations: Iterable[Operation]) -> None:
    for one in operations:
        one.future.cancel()
