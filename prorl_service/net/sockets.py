"""Sockets of servers: bound early, noticing peers that vanish, accepting one connection at a time.

Knows nothing of what is served.
"""

import asyncio
import socket
from collections.abc import Callable

from prorl_service.errors import ProRLError

WAITING = 128
"""Connections that the kernel keeps until they are accepted."""
PAUSE_S = 0.1
"""Seconds until the next try after a connection that could not be accepted."""


class Acceptor:
    """Accepts one connection at a time: a server of asyncio's takes all that wait at once, and with
    them more descriptors than any limit on open connections allows."""

    def __init__(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Accepts until `close`, and owns the listener."""
        self._listener, self._protocol = listener, protocol
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[object]] = set()
        listener.setblocking(False)
        listener.listen(WAITING)
        self._watch()

    async def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._opening:
            await asyncio.wait(self._opening)

    def _watch(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:  # the client has left
            return
        except OSError:  # no descriptor is free
            self._loop.remove_reader(self._listener)
            self._pause = self._loop.call_later(PAUSE_S, self._watch)
            return
        accepted.setblocking(False)
        opening = self._loop.create_task(
            self._loop.connect_accepted_socket(self._protocol, accepted)
        )
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)


NOTICED_WITHIN_S = 60
PROBES = 3

_OPTIONS = {
    "TCP_KEEPIDLE": NOTICED_WITHIN_S // 2,
    "TCP_KEEPINTVL": NOTICED_WITHIN_S // (2 * PROBES),
    "TCP_KEEPCNT": PROBES,
    "TCP_USER_TIMEOUT": NOTICED_WITHIN_S * 1000,
}
NOTICE_VANISHED = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _OPTIONS.items()
        if hasattr(socket, name)  # trainers may run on systems other than Linux
    ),
]
"""Arguments of `socket.setsockopt` that detect a peer which vanished silently, on either side.
Without them the kernel waits two hours for a silent peer, a quarter of an hour for one that
acknowledges nothing, and forever for one that acknowledges everything and reads nothing."""


def listener(host: str, port: int) -> socket.socket:
    """Returns a bound socket, which refuses connections until a server listens on it. Raises
    `ProRLError`."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        problem = f"cannot listen on {host!r}: {error.strerror}"
        raise ProRLError(problem, hint="pass an address of this machine as --host") from error
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for option in NOTICE_VANISHED:
        bound.setsockopt(*option)  # accepted sockets inherit them
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        problem = f"cannot listen on {host}:{port}: {error.strerror}"
        raise ProRLError(problem, hint="choose another --port") from error
    return bound
