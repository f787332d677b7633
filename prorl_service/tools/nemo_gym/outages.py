"""Outages of a server: it was restarted, so what its process held is gone.

A restarted server takes the cookies of before and says nothing, so each outage is noticed when it
begins: an idle connection ends with the server's process, and nobody listens then. A proxy that
only closes an idle connection takes another at once, which counts as no outage. Sends nothing.
"""

import asyncio
import logging
import socket
import time
from contextlib import suppress
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
STEADY_S = 1.0
"""Age of a connection after whose end another one is tried without delay."""
PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Options by which the kernel notices a host that vanished: seconds, seconds, number."""


class Outages:
    def __init__(self, url: str, name: str) -> None:
        self.count = 0
        """Number of times that nobody listened after the server was there."""
        self.is_up: bool | None = None
        """Whether the server answered last time; None before the first time."""
        self._name = name
        parts = urlsplit(url)
        self._address = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))

    def away(self) -> None:
        """Notes that nobody listens."""
        if self.is_up is not False:
            log.warning("%s is away", self._name)
        self.count += bool(self.is_up)
        self.is_up = False

    def back(self) -> None:
        """Notes that the server is there."""
        if self.is_up is False:
            log.info("%s is back", self._name)
        self.is_up = True

    async def watch(self) -> None:
        """Watches until cancelled."""
        delay_s = FIRST_DELAY_S
        while True:
            started = time.monotonic()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    reader, writer = await asyncio.open_connection(*self._address)
            except OSError:  # of which TimeoutError is one
                self.away()
            else:
                self.back()
                await _until_closed(reader, writer)
            if time.monotonic() - started > STEADY_S:
                delay_s = FIRST_DELAY_S
                if self.is_up:
                    continue
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LONGEST_DELAY_S)


async def _until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in PROBES.items():
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    try:
        with suppress(OSError):
            while await reader.read(2**12):
                pass
    finally:
        writer.close()
