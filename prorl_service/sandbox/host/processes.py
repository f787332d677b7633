"""Processes that are waited for without a thread and signalled without a race.

A pidfd wakes the event loop when the process ends, and never stands for another process. The first
16 KiB that the process writes to standard output and error are kept in memory, for the message when
it fails.
"""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict
from weakref import WeakSet

MESSAGES_BYTES = 16384

_connections: WeakSet[socket.socket] = WeakSet()


def close_in_forks(connection: socket.socket) -> None:
    """Closes `connection` in forks of the service: an open copy would keep the sandbox alive."""
    _connections.add(connection)


def _close_connections() -> None:
    for connection in _connections:
        connection.close()


os.register_at_fork(after_in_child=_close_connections)


class UserArguments(TypedDict):
    user: int | None
    group: int | None
    extra_groups: list[int] | None


def as_user(user: int | None) -> UserArguments:
    """Returns the arguments of `subprocess` for a user and its group; None: the service's own."""
    return {"user": user, "group": user, "extra_groups": None if user is None else []}


class Process:
    """A process, which may be another process's child."""

    def __init__(self, pidfd: int, messages: int | None = None) -> None:
        """Owns both descriptors; `messages` comes from `bounded_memory`."""
        self._pidfd = pidfd
        self._messages = messages
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(pidfd, self._on_end)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self.ended.set_result(None)

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Sends SIGKILL, also to what would outlive the process."""
        self.signal(signal.SIGKILL)

    def descendants(self) -> list["Process"]:
        """Returns current descendants, without those that end meanwhile. Raises `OSError`."""
        found: list[Process] = []
        parents = [self.pid]
        try:
            while parents:
                children = _children(parents.pop())
                parents += children
                for pid in children:
                    with suppress(ProcessLookupError):
                        found.append(Process(os.pidfd_open(pid)))
        except OSError:
            for process in found:
                process.close()
            raise
        return found

    def close(self) -> None:
        """Closes the descriptors. `ended` stays as it is from then on."""
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        if self._messages is not None:
            os.close(self._messages)

    def messages(self) -> str:
        """Returns what the process wrote so far."""
        if self._messages is None:
            return ""
        written = os.pread(self._messages, MESSAGES_BYTES, 0)
        return written.rstrip(b"\0").decode(errors="replace").strip()

    @property
    def pid(self) -> int:
        """Process id as seen from here; -1 once the process is gone or closed."""
        if self._pidfd < 0:
            return -1
        with open(f"/proc/self/fdinfo/{self._pidfd}") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["Pid"])


class Child(Process):
    """A child process, which leads its own session and process group."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: int,
        env: Mapping[str, str],
        cwd: str,
        user: int | None,
    ) -> None:
        """Starts it. Only a service that is root may set `user`, which is also the group."""
        messages = bounded_memory()
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=messages,
                stderr=messages,
                env=env,
                cwd=cwd,
                start_new_session=True,
                **as_user(user),
            )
        except BaseException:
            os.close(messages)
            raise
        super().__init__(os.pidfd_open(self._process.pid), messages)

    def _on_end(self) -> None:
        self._process.wait()
        super()._on_end()

    def kill(self) -> None:
        """Sends SIGKILL to its process group: to it and to descendants that did not leave."""
        if not self.ended.done():
            os.killpg(self._process.pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """Returns the children of all threads of a process."""
    children: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # that thread or the whole process is gone
            children += map(int, listed.read_text().split())
    return children


def bounded_memory() -> int:
    """Makes a file in memory that cannot grow: a sandbox must not use it as storage."""
    fd = os.memfd_create("messages", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, MESSAGES_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return fd


async def readable(fd: int) -> None:
    """Waits until `fd` can be read without blocking."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(fd, ready.set_result, None)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
