"""The journal's file: created, locked for one service, brought to the current version, opened.

One connection writes and another one reads (WAL), so that a large read does not delay writes. Both
belong to one service: the lock is on a file of its own next to the journal, since SQLite's own
locks are dropped when a process closes any descriptor of the database.
"""

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from prorl_service.errors import JournalError, problems_of
from prorl_service.rollouts.journal.seals import is_damage
from prorl_service.rollouts.journal.tables import TABLES, VERSION
from prorl_service.schemas.numbers import shown

log = logging.getLogger(__name__)

APPLICATION_ID = 0x50524F52
LOCK_TIMEOUT_S = 2.0
"""Seconds to wait for the file, which a service that is about to end may still hold."""
LOCK_RETRY_S = 0.05
MAX_WAL_BYTES = 2**26
"""Size to which the write-ahead log is cut back when its content is in the file."""
INCREMENTAL = 2
DAMAGED_HINT = "move it away to start with an empty one; `sqlite3 FILE .recover` may save it"

MIGRATIONS = {4: Path(__file__).with_name("from_4.sql").read_text()}
"""Steps to the next version, keyed by the version that they start from; a step is never changed
once a service of its version was released. Version 4 is that of release 0.2. The step from it
leaves turns without a checksum behind: their rollouts start from scratch, and no attempt counts
against them. Version 5 has seals behind the results that it writes."""

_locked: set[Path] = set()
"""Journals that this process has locked; the kernel would grant it a second lock."""


class FileLock:
    """Lock that is held until it is released, or the process ends."""

    def __init__(self, path: Path) -> None:
        """Raises `JournalError` if another holds the lock, and `OSError`."""
        self._path = path.resolve()
        self._descriptor: int | None = None
        give_up_at = time.monotonic() + LOCK_TIMEOUT_S
        while not self._take():
            if time.monotonic() > give_up_at:
                raise JournalError(
                    f"the journal {path.with_suffix('')} is in use",
                    hint="another service has it; give every service its own",
                )
            time.sleep(LOCK_RETRY_S)

    def _take(self) -> bool:
        if self._path in _locked:
            return False
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_at_its_place(descriptor):  # removed by the one that held it
                os.close(descriptor)
                return False
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        _locked.add(self._path)
        self._descriptor = descriptor
        return True

    def _is_at_its_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False

    def release(self, *, remove: bool = False) -> None:
        if self._descriptor is not None:
            if remove:
                self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None
            _locked.discard(self._path)


@dataclass(frozen=True, slots=True)
class JournalFile:
    """Connections of a journal, each for one thread. `reader` is None for a journal in memory."""

    writer: sqlite3.Connection
    reader: sqlite3.Connection | None = None
    path: Path | None = None
    lock: FileLock | None = None
    is_new: bool = False

    def close(self, *, remove: bool = False) -> None:
        """Closes the connections, the last of which brings the write-ahead log into the file."""
        if self.reader is not None:
            self.reader.close()
        self.writer.close()
        if self.path is not None and remove:
            self.path.unlink(missing_ok=True)
        if self.lock is not None:
            self.lock.release(remove=remove)


def open_file(path: Path | None) -> JournalFile:
    """Opens a journal, created if need be. Raises `JournalError` for a file that cannot be used."""
    if path is None:
        writer = connect(":memory:")
        _prepare(writer, "the journal in memory")
        return JournalFile(writer)
    lock = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f"{path.name}.lock"))
        return _open_locked(path, lock)
    except BaseException as error:
        if lock is not None:
            lock.release()
        if isinstance(error, sqlite3.Error | OSError | UnicodeDecodeError):
            raise unusable(f"the journal {path}", error) from error
        raise


def _open_locked(path: Path, lock: FileLock) -> JournalFile:
    is_new = not path.exists()
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    writer = connect(path)
    try:
        _prepare(writer, f"the journal {path}")
        reader = connect(path)
        reader.execute("PRAGMA query_only = 1")
    except BaseException:
        writer.close()
        raise
    return JournalFile(writer, reader, path, lock, is_new)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Writes all of the block or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def connect(path: Path | str) -> sqlite3.Connection:
    """Opens a connection for use in another thread. The caller commits."""
    return sqlite3.connect(
        path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )


def _prepare(db: sqlite3.Connection, name: str) -> None:
    db.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")  # takes effect while the file is empty
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")  # survives a machine crash; one fsync a transaction
    db.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
    db.execute("BEGIN EXCLUSIVE")
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if db.execute("SELECT 1 FROM sqlite_schema").fetchone() is None:
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        run_script(db, TABLES)
    elif application != APPLICATION_ID:
        raise JournalError(f"{name} is a database, but not a journal", hint="name another file")
    else:
        _migrate(db, version, name)
    db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")


def _migrate(db: sqlite3.Connection, version: int, name: str) -> None:
    """Runs all steps in the open transaction: after a crash it begins from the old version."""
    if version != VERSION and version not in MIGRATIONS:
        raise JournalError(
            f"{name} has version {version}, this service needs version {VERSION}",
            hint="let the service that wrote it finish it, or start with a new file",
        )
    if version != VERSION:
        log.warning("%s: from version %d to %d; a large one takes minutes", name, version, VERSION)
    for step in range(version, VERSION):
        run_script(db, MIGRATIONS[step])


def run_script(db: sqlite3.Connection, script: str) -> None:
    """Runs the statements one by one, since `executescript` would commit first."""
    for statement in filter(str.strip, script.split(";")):
        db.execute(statement)


def unusable(name: str, error: Exception) -> JournalError:
    """Returns what `error` means for a journal: of its file, of SQLite, or of content that cannot
    be parsed."""
    if isinstance(error, OSError):
        return JournalError(f"cannot create {name}: {error.strerror}")
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
        hint = "another service has it; give every service its own"
        return JournalError(f"{name} is in use: {error}", hint=hint)
    if isinstance(error, sqlite3.Error) and not is_damage(error):
        return JournalError(f"{name} cannot be opened: {error}")
    problem = problems_of(error) if isinstance(error, ValidationError) else shown(error)
    return JournalError(f"{name} is damaged: {problem}", hint=DAMAGED_HINT, retryable=False)
