"""Files by which processes on any node of a shared file system tell each other what they hold.

A lock is made by a hard link, which is atomic on NFS and Lustre too; flock is not relied on, nor
are clocks of different nodes compared. The file says who holds it. On the same node (and in the
same PID namespace) the holder is looked up; elsewhere it is taken for dead after `STALE_S` without
a heartbeat. A holder that was suspended for longer finds its lock taken over: what locks protect
here is work, not truth, since an image appears by one rename of a complete file.

All but `Heartbeat` is blocking: call it in a thread.
"""

import asyncio
import os
import secrets
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

import orjson

from prorl_service.utils import processes
from prorl_service.utils.tasks import TaskOwner

HEARTBEAT_S = 15.0
STALE_S = 120.0
"""More than the minute for which NFS may show an old modification time."""

UNFINISHED = ".new-"
"""Begins the names of files that are not complete yet."""


class FileLock:
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
        """False if somebody has it. The directory is made if need be."""
        unfinished = self.path.parent / f"{UNFINISHED}{secrets.token_hex(8)}"
        while True:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                unfinished.write_bytes(self._content)
                break
            except FileNotFoundError:
                continue  # the directory was empty and somebody swept it
        try:
            os.link(unfinished, self.path)
        except FileExistsError:
            # NFS may repeat a request whose answer was lost; the number of links does not lie.
            return unfinished.stat().st_nlink == 2
        finally:
            unfinished.unlink()
        return True

    def take_over(self) -> bool:
        """Like `take`, also from a holder that is gone."""
        if self.take():
            return True
        if not is_abandoned(self.path, missing=False):
            return False
        # Only who holds this may remove an abandoned lock, having looked again.
        breaker = FileLock(self.path.with_name(f"{self.path.name}.breaker"))
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
        """Raises `FileNotFoundError` when it was taken away."""
        os.utime(self.path)

    def release(self) -> None:
        with suppress(FileNotFoundError):
            if self.path.read_bytes() == self._content:
                self.path.unlink()


class Heartbeat:
    """Keeps locks fresh while there are any."""

    def __init__(self) -> None:
        self._locks: set[FileLock] = set()
        self._background = TaskOwner()
        self._task: asyncio.Task[None] | None = None

    def add(self, lock: FileLock) -> None:
        self._locks.add(lock)
        if self._task is None or self._task.done():
            self._task = self._background.start(self._beat(), name="image cache heartbeat")

    def remove(self, lock: FileLock) -> None:
        self._locks.discard(lock)
        if not self._locks and self._task is not None:
            self._background.cancel(self._task)
            self._task = None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await asyncio.to_thread(_beat_all, list(self._locks))


def _beat_all(locks: list[FileLock]) -> None:
    for lock in locks:
        with suppress(OSError):  # the file system is away, or the lock was released just now
            lock.beat()


def is_abandoned(path: Path, *, missing: bool = True) -> bool:
    """Whether the holder of a lock is gone, as far as can be seen from here.

    `missing` is the answer where there is no lock.
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
    """Now, by the clock that sets modification times in `directory`. Seconds since 1970."""
    probe = directory / f"{UNFINISHED}{secrets.token_hex(8)}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink()


@cache
def _place() -> str:
    """Where process ids mean the same."""
    return f"{socket.gethostname()} {processes.pid_scope()}"
