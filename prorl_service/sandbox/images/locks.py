"""Lock files for processes on any node of a shared file system.

A lock is made by a hard link, which is atomic on NFS and Lustre too; flock is not used, and clocks
of different nodes are not compared. The file names the holder. On the same node (and in the same
PID namespace) the holder is looked up; elsewhere it is taken for dead after `STALE_S` without a
heartbeat. A holder that was suspended for longer finds its lock taken over: locks only save
duplicate work here, since an image appears by one rename of a complete file.

Everything except `Heartbeat` blocks: call it in a thread.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path

import orjson

from prorl_service.sandbox.images.aio import in_thread
from prorl_service.utils import processes
from prorl_service.utils.tasks import TaskOwner

HEARTBEAT_S = 15.0
STALE_S = 120.0
"""Seconds to staleness: more than the minute for which NFS may show an old modification time."""

UNFINISHED = ".new-"
"""Prefix of the names of incomplete files."""


class LockFile:
    """A file that this process holds, from `take` until `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = orjson.dumps(
            {
                "place": _place(),
                "pid": os.getpid(),
                "started": processes.start_time(os.getpid()),
                "token": secrets.token_hex(8),
            }
        )

    def take(self) -> bool:
        """Takes the lock; returns False if it is held. Makes the directory if needed."""
        unfinished = self.path.parent / f"{UNFINISHED}{secrets.token_hex(8)}"
        while True:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                unfinished.write_bytes(self._content)
                break
            except FileNotFoundError:
                continue  # another process swept the empty directory
        try:
            os.link(unfinished, self.path)
        except FileExistsError:
            # NFS may repeat a request whose answer was lost; the number of links does not lie.
            return unfinished.stat().st_nlink == 2
        finally:
            unfinished.unlink()
        return True

    def take_over(self) -> bool:
        """Like `take`, but also takes the lock from a holder that is gone."""
        if self.take():
            return True
        if not is_abandoned(self.path, missing=False):
            return False
        # Only the holder of the breaker may remove an abandoned lock, after another check.
        breaker = LockFile(self.path.with_name(f"{self.path.name}.breaker"))
        if breaker.take():
            try:
                if is_abandoned(self.path, missing=False):
                    self.path.unlink()
            finally:
                breaker.release()
        elif is_abandoned(breaker.path, missing=False):
            breaker.path.unlink(missing_ok=True)
        return self.take()

    def beat(self) -> None:
        """Refreshes the lock. Raises `FileNotFoundError` if it is gone."""
        os.utime(self.path)

    def release(self) -> None:
        with suppress(FileNotFoundError):
            if self.path.read_bytes() == self._content:
                self.path.unlink()


class Heartbeat:
    """Keeps the added locks fresh."""

    def __init__(self) -> None:
        self._locks: set[LockFile] = set()
        self._background = TaskOwner()
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def holding(self, lock: LockFile, taking: Awaitable[object]) -> AsyncIterator[None]:
        """Waits for `taking`, keeps the lock fresh for the time of the block, and releases it."""
        try:
            await taking
            self._locks.add(lock)
            if self._task is None or self._task.done():
                self._task = self._background.start(self._beat(), name="image cache heartbeat")
            yield
        finally:
            self._locks.discard(lock)
            if not self._locks and self._task is not None:
                self._background.cancel(self._task)
                self._task = None
            await in_thread(lock.release)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await asyncio.to_thread(_beat_all, list(self._locks))


def _beat_all(locks: list[LockFile]) -> None:
    for lock in locks:
        with suppress(OSError):  # the file system is unreachable, or the lock was just released
            lock.beat()


def is_abandoned(path: Path, *, missing: bool = True) -> bool:
    """Returns whether the holder of a lock is gone, as far as this process can see.

    `missing` is the answer if there is no lock.
    """
    try:
        with path.open("rb") as file:
            holder = orjson.loads(file.read())
            beaten_at = os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return missing
    if holder["place"] == _place():
        return not processes.is_running(holder["pid"], holder["started"])
    return file_system_time(path.parent) - beaten_at > STALE_S


def file_system_time(directory: Path) -> float:
    """Returns seconds since 1970, by the clock of modification times in `directory`."""
    probe = directory / f"{UNFINISHED}{secrets.token_hex(8)}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink()


@cache
def _place() -> str:
    """Names the scope of process ids: the host and PID namespace."""
    return f"{socket.gethostname()} {processes.pid_scope()}"
