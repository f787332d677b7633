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
from prorl_service.rollouts.journal.follower import (
    FoundGroup,
    answer_at,
    ended_in,
    next_group,
    request_at,
)
from prorl_service.rollouts.journal.tables import VERSION

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
            number = 0
            while (group := next_group(db, number)) is not None:
                if (request := request_at(db, group.number)) is not None:
                    yield request, _ended(db, group)
                number = group.number + 1
    except (sqlite3.Error, ResultLost) as error:
        raise JournalError(f"the journal {file} cannot be read: {error}") from error


def open_to_read(file: Path) -> sqlite3.Connection:
    """A service that has the file open keeps a write-ahead log beside it; without one the file does
    not change, and SQLite need not make one. Raises `sqlite3.Error`."""
    log = file.with_name(f"{file.name}-wal")
    how = "mode=ro" if log.exists() else "immutable=1"
    return sqlite3.connect(f"file:{quote(str(file.resolve()))}?{how}", uri=True)


def check_journal(db: sqlite3.Connection, file: Path) -> None:
    """Raises `JournalError` for another database, and `sqlite3.Error`."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise JournalError(f"{file} is a database, but no journal")


def _opened(file: Path) -> sqlite3.Connection:
    db = open_to_read(file)
    try:
        check_journal(db, file)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            raise JournalError(
                f"the journal {file} is of version {version}, this program reads {VERSION}",
                hint="a start of the service with it brings it to the current one",
            )
    except BaseException:
        db.close()
        raise
    return db


def _ended(db: sqlite3.Connection, group: FoundGroup) -> list[bytes]:
    answers = []
    for index in ended_in(db, group):
        try:
            answers.append(answer_at(db, group.row_id(index)))
        except ResultLost as lost:
            log.warning("rollout %d of group number %d: %s", index, group.number, lost)
    return [answer for answer in answers if answer is not None]
