"""The shelf's file next to the journal's: created, opened, or moved aside for a new one.

Its data is for people and can be lost: it is synced only at checkpoints of its write-ahead log, so
a power cut costs the last seconds, and an unusable file never keeps a service from starting. The
journal's lock covers this file too.
"""

import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from prorl_service.rollouts.journal.file import INCREMENTAL, connect, run_script
from prorl_service.shelf.tables import APPLICATION_ID, TABLES, VERSION
from prorl_service.utils import files

log = logging.getLogger(__name__)

SUFFIXES = ("", "-wal", "-shm")


class Unusable(Exception):
    """A file that is not a shelf, or is of another version."""


@dataclass(frozen=True, slots=True)
class ShelfFile:
    """The file's connections, each for one thread."""

    writer: sqlite3.Connection
    reader: sqlite3.Connection
    path: Path
    is_temporary: bool = False

    def limit_log(self, count: int) -> None:
        """Sets the size of the log, in bytes, at which to checkpoint. Raises `sqlite3.Error`."""
        (page_bytes,) = self.writer.execute("PRAGMA page_size").fetchone()
        self.writer.execute(f"PRAGMA wal_autocheckpoint = {max(1, count // page_bytes)}")
        self.writer.execute(f"PRAGMA journal_size_limit = {count}")
        self.writer.execute("PRAGMA busy_timeout = 0")  # it waits for no reader

    def cut_log(self, count: int) -> bool:
        """Truncates a log that outgrew `count` because a reader held up checkpoints. Returns False
        if a reader still does. Raises `sqlite3.Error`."""
        log_file = _beside(self.path, "-wal")
        if not log_file.exists() or log_file.stat().st_size <= count:
            return True
        (is_busy, *_) = self.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy

    def bytes(self) -> int:
        """Returns the size on disk, log included."""
        paths = (_beside(self.path, suffix) for suffix in SUFFIXES)
        return sum(path.stat().st_size for path in paths if path.exists())

    def close(self, *, remove: bool = False) -> None:
        self.reader.close()
        with suppress(sqlite3.Error):  # a full disk: the log stays next to the file
            self.writer.close()
        if self.is_temporary:
            shutil.rmtree(self.path.parent, ignore_errors=True)
        elif remove:
            for suffix in SUFFIXES:
                _beside(self.path, suffix).unlink(missing_ok=True)


def open_file(journal: Path | None) -> ShelfFile | None:
    """Returns None, and logs a warning, if no shelf can be opened.

    The shelf of a journal in memory ends with the process. It is a temporary file, since a database
    in memory does not allow readers next to a writer.
    """
    is_temporary = journal is None
    try:
        if journal is None:
            path = files.temporary_directory("shelf") / "shelf"
        else:
            path = journal.with_name(f"{journal.name}.shelf")
        return _open_or_renew(path, is_temporary=is_temporary)
    except (sqlite3.Error, OSError, Unusable) as error:
        log.warning("there is no shelf, so ended rollouts are not listed: %s", error)
        return None


def _open_or_renew(path: Path, *, is_temporary: bool) -> ShelfFile:
    try:
        return _open(path, is_temporary=is_temporary)
    except (sqlite3.DatabaseError, Unusable) as error:
        if isinstance(error, sqlite3.OperationalError) or not path.is_file():
            raise  # unusable now, but its content is not damaged
        aside = move_aside(path)
        log.warning("the shelf %s %s: moved to %s, starting a new one", path, error, aside.name)
        return _open(path, is_temporary=is_temporary)


def others_beside(path: Path) -> Iterator[sqlite3.Connection]:
    """Yields connections that read the shelves of other services in the directory, one by one.
    Skips files that cannot be read."""
    for other in sorted(path.parent.glob("*.shelf")):
        address = f"{other.resolve().as_uri()}?mode=ro"
        with (
            suppress(sqlite3.Error, Unusable),
            closing(sqlite3.connect(address, uri=True, isolation_level=None)) as db,
        ):
            _check(db)
            if not other.samefile(path):
                yield db


def move_aside(path: Path) -> Path:
    """Renames the file, over one that was moved aside before. Raises `OSError`."""
    aside = path.with_name(f"{path.name}.damaged")
    for suffix in SUFFIXES:
        with suppress(FileNotFoundError):
            _beside(path, suffix).replace(_beside(aside, suffix))
    return aside


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}{suffix}")


def _open(path: Path, *, is_temporary: bool) -> ShelfFile:
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    writer = connect(path)
    try:
        _prepare(writer)
        reader = connect(path)
        reader.execute("PRAGMA query_only = 1")
        reader.execute("PRAGMA automatic_index = 0")  # lists stop early: an index would cost more
    except BaseException:
        writer.close()
        raise
    return ShelfFile(writer, reader, path, is_temporary)


def _prepare(db: sqlite3.Connection) -> None:
    """Creates or checks the tables. Leaves a file that is not a shelf unchanged."""
    is_new = db.execute("SELECT 1 FROM sqlite_schema").fetchone() is None
    if not is_new:
        _check(db)
    db.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")  # takes effect only in an empty file
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    if is_new:
        db.execute("BEGIN EXCLUSIVE")
        run_script(db, TABLES)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    db.execute("SELECT count(*), max(created_at) FROM groups").fetchone()  # it can be read


def _check(db: sqlite3.Connection) -> None:
    """Raises `Unusable`."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise Unusable("is a database, but not a shelf")
    if version != VERSION:
        raise Unusable(f"has version {version}, this service needs {VERSION}")
