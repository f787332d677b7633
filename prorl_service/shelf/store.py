"""The shelf as a follower of the journal: ended rollouts as rows, some whole, within bounds.

The journal's thread writes the shelf in slices between its own work; the event loop only sets the
service's current state. Readers have their own connection and thread. While the file cannot be
written, ended rollouts are skipped; those not acknowledged before it recovers are added then.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TypeVar

from prorl_service.errors import ShelfError
from prorl_service.rollouts.journal.file import transaction
from prorl_service.rollouts.journal.tables import EndedRow
from prorl_service.schemas import ShelfStatus
from prorl_service.shelf import contents, tables, training
from prorl_service.shelf.eviction import Eviction
from prorl_service.shelf.file import ShelfFile, move_aside, open_file, others_beside
from prorl_service.shelf.policy import ShelfOptions
from prorl_service.shelf.shelving import Now, Shelving

log = logging.getLogger(__name__)

Found = TypeVar("Found")

RETRY_S = 60.0
"""Seconds before a failed write is retried."""
FINISH_S = 2.0
"""Most seconds spent copying when the service stops."""
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Shelf:
    """The shelf's writer and reader. Open it before the journal is entered, and close it after."""

    def __init__(self, file: ShelfFile, run: str, options: ShelfOptions) -> None:
        """Raises `sqlite3.Error`."""
        self.run = run
        self.lock = Lock()
        self.failure: str | None = None
        """Reason the shelf cannot be written; None while it can."""
        self._limit_bytes = options.bytes
        self._file = file
        self._db = file.writer
        self._retry_at = 0.0
        self._is_lost = False
        """True once the file is damaged: this process does not write it again."""
        with transaction(self._db):
            self._shelving = Shelving(self._db, run, options)
            self._began_at = time.monotonic() - tables.uptime(self._db)
        self._eviction = Eviction(self._db, options)
        file.limit_log(self._eviction.log_bytes // 2)
        self._reader = ThreadPoolExecutor(1, "shelf reader")

    @classmethod
    def open(cls, journal: Path | None, run: str, options: ShelfOptions) -> "Shelf | None":
        """Returns None if the options turn the shelf off, or if it cannot be opened.

        `journal` is the journal's path, None for one in memory.
        """
        file = open_file(journal) if options.bytes else None
        if file is None:
            return None
        try:
            return cls(file, run, options)
        except sqlite3.Error as error:
            log.warning("there is no shelf, so ended rollouts are not listed: %s", error)
            file.close()
            return None

    def close(self) -> None:
        """Closes the file, and removes it if the shelf is empty."""
        self._reader.shutdown()
        is_empty = False
        with suppress(sqlite3.Error):
            is_empty = contents.oldest(self._db) is None
        self._file.close(remove=is_empty)

    def status(self) -> ShelfStatus:
        return ShelfStatus(
            bytes=self._file.bytes(), limit_bytes=self._limit_bytes, failure=self.failure
        )

    def set_now(self, now: Now) -> None:
        """Sets the service's current state. The event loop calls it after each change."""
        self._shelving.now = now

    # --- reading --------------------------------------------------------------------------------

    async def read(self, work: Callable[[sqlite3.Connection], Found]) -> Found:
        """Runs `work` in one transaction in the reader's thread. It sees every rollout that has
        ended for the event loop. Raises `ShelfError`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, self._read, work)

    async def read_run(self, run: str, work: Callable[[sqlite3.Connection], Found]) -> Found:
        """Runs `work` as `read` does, on the shelf that knows the run: on that of another service
        next to this one if only that does."""

        def found(db: sqlite3.Connection) -> Found:
            if run in (self.run, *training.runs(db)):
                return work(db)
            for other in others_beside(self._file.path):
                if run in training.runs(other):
                    return work(other)
            return work(db)

        return await self.read(found)

    async def runs(self) -> list[str]:
        """Returns the runs that `read_run` can read, this one first. Raises `ShelfError`."""

        def found(db: sqlite3.Connection) -> list[str]:
            others = (training.runs(other) for other in others_beside(self._file.path))
            return [*dict.fromkeys([self.run, *training.runs(db), *chain(*others)])]

        return await self.read(found)

    def _read(self, work: Callable[[sqlite3.Connection], Found]) -> Found:
        with self.lock:  # see `Follower.lock`
            pass
        db = self._file.reader
        try:
            db.execute("BEGIN")
            return work(db)
        except sqlite3.Error as error:
            raise ShelfError(f"the shelf cannot be read: {error}") from error
        finally:
            if db.in_transaction:
                db.execute("COMMIT")

    # --- what the journal's thread calls --------------------------------------------------------

    def ended(self, db: sqlite3.Connection, rows: Sequence[EndedRow]) -> None:
        def shelve() -> None:
            for row in rows:
                self._shelving.shelve(db, row, self._uptime_s())
            tables.keep_uptime(self._db, self._uptime_s())

        self._write(shelve)

    def copy(self, db: sqlite3.Connection, is_over: Callable[[], bool]) -> bool:
        def step() -> None:
            while not self._shelving.is_done:
                self._shelving.step(db, self._uptime_s())
                if is_over():
                    break

        if self._shelving.is_done:
            return False
        return self._write(step) and not self._shelving.is_done

    def tidy(self, is_over: Callable[[], bool]) -> bool:
        is_left = False

        def evict() -> None:
            nonlocal is_left
            is_left = self._eviction.evict(self._uptime_s(), is_over)

        if not self._write(evict):
            return False
        with self._noticing_failure():
            is_left |= self._eviction.give_room_back(is_over)
            is_left |= not self._file.cut_log(self._eviction.log_bytes)
        return is_left and self.failure is None

    def finish(self, db: sqlite3.Connection) -> None:
        give_up_at = time.monotonic() + FINISH_S
        self.copy(db, lambda: time.monotonic() > give_up_at)
        self._write(lambda: tables.keep_uptime(self._db, self._uptime_s()))

    def _uptime_s(self) -> float:
        """Total uptime of all services that used this shelf; ages are measured by it."""
        return time.monotonic() - self._began_at

    def _write(self, work: Callable[[], None]) -> bool:
        """Does all of `work` or nothing. Returns False if the shelf cannot be written."""
        if self._is_lost or (self.failure is not None and time.monotonic() < self._retry_at):
            return False
        with self._noticing_failure(), transaction(self._db):
            work()
            return True
        return False

    @contextmanager
    def _noticing_failure(self) -> Iterator[None]:
        """Handles all errors of SQLite, so that they cannot affect the journal."""
        try:
            if self.failure is not None:
                with transaction(self._db):
                    self._shelving.start_over()  # the failed work was rolled back
            changes = self._db.total_changes
            yield
        except sqlite3.Error as error:
            self._note_failure(error)
        else:
            # What changes nothing succeeds on a full disk, too.
            if self.failure is not None and self._db.total_changes > changes:
                log.warning("the shelf %s can be written again", self._file.path)
                self.failure = None

    def _note_failure(self, error: sqlite3.Error) -> None:
        self._retry_at = time.monotonic() + RETRY_S
        self._is_lost = getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED
        if self.failure is None:
            text = "the shelf %s cannot be written, so ended rollouts are not kept for people: %s"
            log.warning(text, self._file.path, error)
        self.failure = f"the shelf cannot be written: {error}"
        if self._is_lost:
            with suppress(OSError):
                log.warning("the damaged shelf was moved to %s", move_aside(self._file.path).name)
