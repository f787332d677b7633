"""Ended rollouts out of a journal's file, beside the service that may have it, or without one.

Reads alone: takes no lock, writes nothing, and holds no transaction open for longer than a group.
"""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from prorl_service.errors import JournalError, ResultLost
from prorl_service.rollouts.journal.file import APPLICATION_ID
from prorl_service.rollouts.journal.follower import answer_at
from prorl_service.rollouts.journal.tables import STRIDE, VERSION

log = logging.getLogger(__name__)

MAGIC = b"SQLite format 3\0"


def is_database(file: Path) -> bool:
    """Raises `OSError`."""
    with file.open("rb") as content:
        return content.read(len(MAGIC)) == MAGIC


def groups_in(file: Path) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yields each group's request, and its whole rollouts that have ended, as JSON, in the order in
    which groups were accepted. Raises `JournalError`."""
    try:
        with closing(_opened(file)) as db:
            numbers = [number for (number,) in db.execute("SELECT number FROM groups ORDER BY 1")]
            for number in numbers:
                if (found := _group(db, number)) is not None:
                    yield found
    except sqlite3.Error as error:
        raise JournalError(f"the journal {file} cannot be read: {error}") from error


def _opened(file: Path) -> sqlite3.Connection:
    """Opens the file to read. A service that has it open keeps a write-ahead log beside it; without
    one the file does not change, and SQLite need not make one."""
    log = file.with_name(f"{file.name}-wal")
    how = "mode=ro" if log.exists() else "immutable=1"
    db = sqlite3.connect(f"file:{quote(str(file.resolve()))}?{how}", uri=True)
    try:
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            raise JournalError(f"{file} is a database, but no journal")
        if version != VERSION:
            raise JournalError(
                f"the journal {file} is of version {version}, this program reads {VERSION}",
                hint="a start of the service with it brings it to the current one",
            )
    except BaseException:
        db.close()
        raise
    return db


def _group(db: sqlite3.Connection, number: int) -> tuple[bytes, list[bytes]] | None:
    """Returns None for a group that was forgotten meanwhile."""
    request = db.execute("SELECT request FROM requests WHERE number = ?", (number,)).fetchone()
    ids = db.execute(
        "SELECT id FROM rollouts WHERE id >= ? AND id < ? AND state IS NOT NULL ORDER BY id",
        (number * STRIDE, (number + 1) * STRIDE),
    ).fetchall()
    answers = []
    for (row_id,) in ids:
        try:
            answers.append(answer_at(db, row_id))
        except ResultLost as lost:
            log.warning("rollout %d of group number %d: %s", row_id % STRIDE, number, lost)
    found = [answer for answer in answers if answer is not None]
    return None if request is None else (request[0], found)
