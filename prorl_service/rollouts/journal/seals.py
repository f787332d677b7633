"""Checksums of results in the journal, and the error of a result that its file has lost.

SQLite has no checksums: a page that a disk or a copy changed may still look like a row, and one row
like another. Knows nothing of the tables.
"""

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from prorl_service.errors import ResultLost

_LENGTH = 9
"""Length of a seal: a line break, which JSON without spaces has nowhere, and eight digits."""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_damage(error: BaseException) -> bool:
    """Returns whether SQLite found a page that is not what it wrote, perhaps in words that are no
    text, since it quotes the page."""
    if isinstance(error, UnicodeDecodeError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, sqlite3.Error) and code is not None and code & 0xFF in _DAMAGE


def sealed(content: bytes, row_id: int) -> bytes:
    """Returns what the row keeps of `content`."""
    return content + _seal(content, row_id)


def opened(stored: object, row_id: int) -> bytes:
    """Returns the content. Raises `ResultLost` if it is not what was sealed for this row."""
    if not isinstance(stored, bytes):  # a damaged page may hold any type
        raise ResultLost.of("it is not bytes")
    content, seal = stored[:-_LENGTH], stored[-_LENGTH:]
    if seal == _seal(content, row_id):
        return content
    try:
        orjson.loads(stored)  # journals of version 4 have no seals
    except orjson.JSONDecodeError:
        raise ResultLost.of("its checksum is wrong") from None
    return stored


def _seal(content: bytes, row_id: int) -> bytes:
    return b"\n%08x" % zlib.crc32(content, row_id & 0xFFFFFFFF)


@contextmanager
def losing_damaged() -> Iterator[None]:
    """Turns what SQLite says of a damaged page into `ResultLost`."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise
        raise ResultLost.of(str(error)) from error
