"""The past, for charts: samples of a day and trainers' metrics, in a small file beside the journal.

It has a file of its own, since the shelf is written by the journal's thread alone and can be off.
All of it is for people and can be lost: it is synced only at checkpoints, a damaged file is moved
aside, and one that cannot be written costs the newest samples. Samples are bounded by their number,
so a clock that jumps deletes none. What is measured is up to `server.samples`.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

import orjson

from prorl_service.errors import ShelfError
from prorl_service.rollouts.journal.file import connect, run_script, transaction
from prorl_service.schemas.history import History, Load, MetricCurve, TrainerStep
from prorl_service.shelf.file import move_aside

log = logging.getLogger(__name__)

Found = TypeVar("Found")

SAMPLE_S = 10.0
HOURS = 24
MAX_SAMPLES = round(HOURS * 3600 / SAMPLE_S)
MAX_STEPS = 10_000
"""Most steps of trainers, of all runs together."""
MAX_POINTS = 500
"""Most points of an answer; of more samples or versions it has means."""
APART_S = 1e-3
"""Width of points that are one sample each."""

TABLES = f"""
CREATE TABLE IF NOT EXISTS samples (
    number INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    {", ".join(f"{name} REAL" for name in Load)}
) STRICT;
CREATE TABLE IF NOT EXISTS steps (
    number INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    version INTEGER NOT NULL,
    step INTEGER NOT NULL,
    metrics TEXT NOT NULL,
    UNIQUE (run, version, step)
) STRICT
"""
_COLUMNS = ", ".join(f"{'max' if name is Load.LAG else 'avg'}({name})" for name in Load)


class HistoryFile:
    """The samples and steps. One thread reads and writes them."""

    def __init__(self, journal: Path | None) -> None:
        """`journal`: the journal's path; None keeps all in memory."""
        self._journal = journal
        self._path = None if journal is None else journal.with_name(f"{journal.name}.history")
        self._thread = ThreadPoolExecutor(1, "history")
        self._is_failing = False
        self._db = self._open()

    def close(self) -> None:
        """Removes the file of a journal that was removed as unused."""
        self._thread.shutdown()
        with suppress(sqlite3.Error):
            self._db.close()
        if self._path is not None and self._journal is not None and not self._journal.exists():
            self._path.unlink(missing_ok=True)

    async def add_sample(self, at: float, load: Mapping[Load, float | None]) -> None:
        """`at`: Unix time in seconds."""
        marks = ", ".join("?" * (len(Load) + 1))
        names = ", ".join(("at", *Load))
        await self._write(
            (f"INSERT INTO samples ({names}) VALUES ({marks})", (at, *(load[one] for one in Load))),
            ("DELETE FROM samples WHERE number <= last_insert_rowid() - ?", (MAX_SAMPLES,)),
        )

    async def add_step(self, run: str, version: int, step: TrainerStep) -> None:
        metrics = orjson.dumps(step.metrics).decode()
        await self._write(
            (
                "INSERT INTO steps (run, version, step, metrics) VALUES (?, ?, ?, ?) ON CONFLICT"
                " DO UPDATE SET metrics = json_patch(metrics, excluded.metrics)",
                (run, version, step.step, metrics),
            ),
            ("DELETE FROM steps WHERE number <= (SELECT max(number) FROM steps) - ?", (MAX_STEPS,)),
        )

    async def samples(self, since: float) -> History:
        """Returns the samples from `since` on, a Unix time in seconds. Raises `ShelfError`."""
        return await self._do(lambda: _samples(self._db, since))

    async def metrics(
        self, run: str, wanted: Collection[str]
    ) -> tuple[list[str], dict[str, MetricCurve]]:
        """Returns the names of all metrics of a run, and the curves of those that are wanted; also
        of a run of another service next to this one. Raises `ShelfError`."""

        def found() -> tuple[list[str], dict[str, MetricCurve]]:
            for db in self._files():
                if names := _names(db, run):
                    return names, _curves(db, run, wanted)
            return [], {}

        return await self._do(found)

    # --- the thread -----------------------------------------------------------------------------

    async def _do(self, work: Callable[[], Found]) -> Found:
        def read() -> Found:
            try:
                return work()
            except sqlite3.Error as error:
                raise ShelfError(f"{self._name} cannot be read: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, read)

    def _files(self) -> Iterator[sqlite3.Connection]:
        """Yields this history, and those of other services in the directory that can be read."""
        yield self._db
        others = [] if self._path is None else sorted(self._path.parent.glob("*.history"))
        for other in others:
            address = f"{other.resolve().as_uri()}?mode=ro"
            with suppress(sqlite3.Error), closing(sqlite3.connect(address, uri=True)) as db:
                db.execute("SELECT max(number) FROM steps")
                if other != self._path:
                    yield db

    async def _write(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        def write() -> None:
            try:
                with transaction(self._db):
                    for statement in statements:
                        self._db.execute(*statement)
                self._is_failing = False
            except sqlite3.Error as error:
                if not self._is_failing:
                    log.warning("%s cannot be written: %s", self._name, error)
                self._is_failing = True

        await asyncio.get_running_loop().run_in_executor(self._thread, write)

    @property
    def _name(self) -> str:
        return f"the history {self._path or 'in memory'}"

    def _open(self) -> sqlite3.Connection:
        """Returns a connection; in memory, with a warning, if the file cannot be used."""
        if self._path is not None:
            try:
                try:
                    return _prepared(self._path)
                except sqlite3.OperationalError:
                    raise  # its content is not damaged
                except sqlite3.DatabaseError as error:
                    aside = move_aside(self._path)
                    log.warning("%s is damaged: %s: moved to %s", self._name, error, aside.name)
                    return _prepared(self._path)
            except (sqlite3.Error, OSError) as error:
                log.warning("%s cannot be used, so it ends with the service: %s", self._name, error)
        return _prepared(":memory:")


def _prepared(path: Path | str) -> sqlite3.Connection:
    if isinstance(path, Path):
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    db = connect(path)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        run_script(db, TABLES)
        db.execute("SELECT max(number), max(at) FROM samples").fetchone()  # it can be read
    except BaseException:
        db.close()
        raise
    return db


def _samples(db: sqlite3.Connection, since: float) -> History:
    query = "SELECT count(*), min(at), max(at) FROM samples WHERE at >= ?"
    count, first, last = db.execute(query, (since,)).fetchone()
    width = APART_S if count <= MAX_POINTS else (last - first) / (MAX_POINTS - 1)
    rows = db.execute(
        f"SELECT avg(at), {_COLUMNS} FROM samples WHERE at >= ? GROUP BY CAST(at / ? AS INTEGER)"
        " ORDER BY 1",
        (since, max(APART_S, width)),
    ).fetchall()
    at, *columns = zip(*rows, strict=True) if rows else [()] * (len(Load) + 1)
    load = {name: list(map(_short, column)) for name, column in zip(Load, columns, strict=True)}
    return History(step_s=max(SAMPLE_S, width), at=list(at), load=load)


def _short(value: float | None) -> float | None:
    """Returns the value with four digits, as many as a chart shows."""
    return None if value is None else float(f"{value:.4g}")


def _names(db: sqlite3.Connection, run: str) -> list[str]:
    query = "SELECT DISTINCT key FROM steps, json_each(metrics) WHERE run = ? ORDER BY key"
    return [name for (name,) in db.execute(query, (run,))]


def _curves(db: sqlite3.Connection, run: str, names: Collection[str]) -> dict[str, MetricCurve]:
    query = "SELECT min(version), max(version) FROM steps WHERE run = ?"
    first, last = db.execute(query, (run,)).fetchone()
    width = 1 if first is None else -(-(last - first + 1) // MAX_POINTS)
    found: dict[str, MetricCurve] = {}
    for name, version, value in db.execute(
        "SELECT key, min(version), avg(value) FROM steps, json_each(metrics)"
        " WHERE run = ? AND key IN (SELECT value FROM json_each(?))"
        " GROUP BY key, (version - ?) / ? ORDER BY 1, 2",
        (run, orjson.dumps([*names]).decode(), first, width),
    ):
        curve = found.setdefault(name, MetricCurve(policy_versions=[], values=[]))
        curve.policy_versions.append(version)
        curve.values.append(value)
    return found
