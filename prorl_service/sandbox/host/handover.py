"""The service's end of the socket on which an execution server passes descriptors.

What comes is not trusted: takers check what kind of file each descriptor is.
"""

import contextlib
import os
import socket
import stat

from prorl_service.errors import SandboxError
from prorl_service.sandbox.guest.execd.fd_passing import MAX_FDS, receive_fds


class Handover:
    def __init__(self, come: socket.socket) -> None:
        """Owns `come`, which does not block."""
        self._come = come
        self._newest: dict[bytes, list[int]] = {}

    def take(self, kind: bytes) -> list[int]:
        """Returns the newest descriptors of this kind, if any are new. Older ones are closed."""
        if self._come.fileno() >= 0:
            with contextlib.suppress(BlockingIOError):
                while self._receive():
                    pass
        return self._newest.pop(kind, [])

    def _receive(self) -> bool:
        """Returns False at the end of the connection."""
        message, fds = receive_fds(self._come, 1, MAX_FDS)
        _close(self._newest.get(message, []))
        self._newest[message] = fds
        return bool(message)

    def close(self) -> None:
        for fds in self._newest.values():
            _close(fds)
        self._newest.clear()
        self._come.close()

    @property
    def is_closed(self) -> bool:
        return self._come.fileno() < 0


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def checked_listener(fds: list[int]) -> socket.socket:
    """Returns the only descriptor as a socket that listens on loopback. Raises `SandboxError` for
    anything else."""
    if len(fds) == 1 and stat.S_ISSOCK(os.fstat(fds[0]).st_mode):
        listener = socket.socket(fileno=fds[0])
        is_listening = (
            listener.family is socket.AF_INET
            and listener.type is socket.SOCK_STREAM
            and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        )
        if is_listening and listener.getsockname()[0] == "127.0.0.1":
            listener.setblocking(False)
            return listener
        listener.close()
    else:
        _close(fds)
    raise SandboxError("the sandbox broke its protocol: it gave no socket that listens")
