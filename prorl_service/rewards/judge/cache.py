"""Cache of a judge's verdicts: in memory, and in an SQLite file that other services may share.

A verdict is kept under a digest; questions and answers are not kept. A file that can no longer be
written costs calls to the judge, not rollouts.
"""

import asyncio
import hashlib
import logging
import sqlite3
from collections import OrderedDict
from enum import StrEnum
from pathlib import Path

import orjson

from prorl_service.errors import ProRLError

log = logging.getLogger(__name__)

MAX_IN_MEMORY = 100_000
"""Maximum number of verdicts: some 20 MB."""
BUSY_TIMEOUT_S = 10.0


class Judgement(StrEnum):
    SAME = "same"
    DIFFERENT = "different"
    DISAGREED = "disagreed"
    """The judge contradicted itself: the same in one order, different in the other."""


def key_of(*parts: str) -> bytes:
    return hashlib.sha256(orjson.dumps(parts)).digest()


class JudgeCache:
    def __init__(self, file: Path | None) -> None:
        """Raises `ProRLError`."""
        self._memory: OrderedDict[bytes, str] = OrderedDict()
        self._database = None if file is None else _open(file)
        self._lock = asyncio.Lock()

    async def get(self, key: bytes) -> str | None:
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key]
        row = await self._execute("SELECT judgement FROM judgements WHERE key = ?", key)
        if row is None:
            return None
        self._remember(key, row[0])
        return row[0]

    async def put(self, key: bytes, verdict: str) -> None:
        self._remember(key, verdict)
        await self._execute("INSERT OR REPLACE INTO judgements VALUES (?, ?)", key, str(verdict))

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def _remember(self, key: bytes, verdict: str) -> None:
        self._memory[key] = verdict
        if len(self._memory) > MAX_IN_MEMORY:
            self._memory.popitem(last=False)

    async def _execute(self, statement: str, *values: bytes | str) -> tuple[str] | None:
        """Returns the first row. None also if there is no file or it cannot be used."""
        if self._database is None:
            return None
        database = self._database
        async with self._lock:
            try:
                return await asyncio.to_thread(
                    lambda: database.execute(statement, values).fetchone()
                )
            except sqlite3.Error as error:
                log.warning("the judge's cache cannot be used: %s", error)
                return None


def _open(file: Path) -> sqlite3.Connection:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(
            file, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(
            "CREATE TABLE IF NOT EXISTS judgements (key BLOB PRIMARY KEY, judgement TEXT NOT NULL)"
            " WITHOUT ROWID"
        )
    except (OSError, sqlite3.Error) as error:
        raise ProRLError(f"the judge's cache {file} cannot be opened: {error}") from error
    return database
