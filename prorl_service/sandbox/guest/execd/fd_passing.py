"""Passing of descriptors out of a sandbox, over a socket of packets next to the connection.

The connection itself carries them only before anything else, while it has no event loop.
"""

import os
import socket
from collections.abc import Sequence

SHELL, LISTENER = b"x", b"l"
"""Kinds of descriptors: a shell's terminal and pipe, and a socket that listens."""
MAX_FDS = 2
DOOR = "door"
"""Name of the socket file on which a container gets its control socket, if not inherited."""


def offer(connection: socket.socket) -> socket.socket:
    """Sends one end of a new socket as the first byte of `connection`; returns the other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with theirs:
        socket.send_fds(connection, [b"x"], [theirs.fileno()])
    return ours


def receive(connection: int) -> socket.socket | None:
    """Waits for what `offer` sends, and returns it. None if a byte comes without a socket."""
    with socket.socket(fileno=os.dup(connection)) as copy:
        _, fds = receive_fds(copy, 1, 1)
    if not fds:
        return None
    theirs = socket.socket(fileno=fds[0])
    theirs.setblocking(False)
    return theirs


def fetch(door: str) -> None:
    """Makes the socket that is given at the file `door` the standard input."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(door)
        _, (fd,) = receive_fds(connection, 1, 1)
    os.dup2(fd, 0)
    os.close(fd)


def send_fds(to: socket.socket, fds: Sequence[int], kind: bytes = SHELL) -> None:
    """Sends descriptors. Raises `OSError` if there is no room for more."""
    socket.send_fds(to, [kind], fds)


def receive_fds(come: socket.socket, max_bytes: int, max_fds: int) -> tuple[bytes, list[int]]:
    """Receives descriptors that are not inherited: `socket.recv_fds` ignores its flag for that."""
    message, fds, _, _ = socket.recv_fds(come, max_bytes, max_fds)
    for fd in fds:
        os.set_inheritable(fd, False)
    return message, fds
