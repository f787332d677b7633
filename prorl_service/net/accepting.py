"""Connections to a listener, accepted one at a time.

A server of asyncio's takes all connections that wait at once, and with them more descriptors than
any limit on open connections allows.
"""

import asyncio
import socket
from collections.abc import Callable

WAITING = 128
"""Connections that the kernel keeps until they are accepted."""
PAUSE_S = 0.1
"""Seconds until the next try after a connection that could not be accepted."""


class Acceptor:
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
