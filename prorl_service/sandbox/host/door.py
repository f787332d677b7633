"""A socket file through which one container gets its control socket.

A container engine's daemon or monitor starts the container, so that it inherits no descriptor of
the service. The directory of the file is mounted into the container, whose zygote connects once and
receives the control socket. Nothing else can: the directory around it is the service's alone, and
sandboxes see no mount of their container.
"""

import asyncio
import os
import shutil
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prorl_service.errors import SandboxError
from prorl_service.sandbox.guest.execd.fd_passing import DOOR
from prorl_service.sandbox.host.processes import Process
from prorl_service.utils import files

CONNECT_TIMEOUT_S = 120.0
"""Seconds for an engine to start a container."""

_CREDENTIALS = struct.Struct("3i")


class ContainerDoor:
    def __init__(self, directory: Path, listener: socket.socket, *, not_root: bool) -> None:
        self.directory = directory
        """Directory to mount into the container."""
        self._listener = listener
        self._not_root = not_root

    async def hand_in(self, control: socket.socket, ended: asyncio.Future[None]) -> Process:
        """Gives `control` to the zygote, and returns it, unless the container's client has `ended`.

        Raises `OSError`, and `SandboxError` for a container that this service may not run.
        """
        loop = asyncio.get_running_loop()
        accepting = loop.create_task(loop.sock_accept(self._listener))
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                either: list[asyncio.Future[Any]] = [accepting, ended]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not accepting.done():
                raise ConnectionResetError("it ended")
        finally:
            accepting.cancel()
        connection, _ = accepting.result()
        with connection:
            credentials = connection.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
            )
            pid, user, _ = _CREDENTIALS.unpack(credentials)
            self._check(pid, user)
            zygote = Process(os.pidfd_open(pid))
            socket.send_fds(connection, [b"x"], [control.fileno()])
        return zygote

    def _check(self, pid: int, user: int) -> None:
        if not pid:
            why = "they run outside of the service's own container"
        elif user == 0 and self._not_root:
            why = "their root is the host's"
        elif os.geteuid() not in (0, user):
            why = f"they are another user's ({user}), whose processes the service may not end"
        else:
            return
        raise SandboxError(f"the engine's containers cannot be used: {why}", retryable=False)


@contextmanager
def opened_door(*, not_root: bool) -> Iterator[ContainerDoor]:
    """Makes the file. With `not_root`, a container is refused whose root is the host's."""
    around = files.temporary_directory("door")
    try:
        directory = around / "open"
        directory.mkdir()
        directory.chmod(0o755)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.setblocking(False)
            listener.bind(str(directory / DOOR))
            (directory / DOOR).chmod(0o666)  # the container's root may be any user of the host
            listener.listen(1)
            yield ContainerDoor(directory, listener, not_root=not_root)
    finally:
        shutil.rmtree(around, ignore_errors=True)
