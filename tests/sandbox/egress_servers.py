"""Servers on the loopback that a proxy may reach, and clients that write to it what they like."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from prorl_service.sandbox.egress.policy import EgressPolicy, Rules
from prorl_service.sandbox.egress.proxy import Egress, ProxyLimits

GUARD_S = 20.0
"""Seconds after which a test fails instead of waiting for ever."""
STANDARD = ProxyLimits()
ANSWER = b"HTTP/1.1 200 OK\r\n\r\nreached"

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter, list[bytes]], Awaitable[None]]


@dataclass(slots=True)
class EgressServer:
    """A server that records what reaches it."""

    port: int = 0
    received: list[bytes] = field(default_factory=list)
    """Bytes of each connection that has ended."""
    open: int = 0
    most: int = 0
    """Largest number of connections at a time."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def all_ended(self, count: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.received) >= count and not self.open)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[list[bytes]]:
        self.open += 1
        self.most = max(self.most, self.open)
        parts: list[bytes] = []
        try:
            yield parts
        except OSError:
            pass
        finally:
            self.open -= 1
            self.received.append(b"".join(parts))
            async with self.changed:
                self.changed.notify_all()


async def answering(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parts: list[bytes]
) -> None:
    """Answers the first head, and goes on to read, whatever was asked."""
    is_answered = False
    while data := await reader.read(1 << 16):
        parts.append(data)
        if b"\r\n\r\n" in b"".join(parts) and not is_answered:
            is_answered = True
            writer.write(ANSWER)
            writer.write_eof()


async def silent(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parts: list[bytes]
) -> None:
    while data := await reader.read(1 << 16):
        parts.append(data)


async def echoing(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parts: list[bytes]
) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)


async def flooding(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parts: list[bytes]
) -> None:
    while True:
        writer.write(bytes(1 << 16))
        await writer.drain()


@asynccontextmanager
async def serving(behaviour: Behaviour, address: str = "127.0.0.1") -> AsyncIterator[EgressServer]:
    server = EgressServer()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with server.connection() as parts:
            try:
                await behaviour(reader, writer, parts)
            finally:
                writer.transport.abort()

    listening = await asyncio.start_server(handle, address, 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(GUARD_S):
            yield server
    finally:
        listening.close()


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=128)


@asynccontextmanager
async def proxy(egress: Egress) -> AsyncIterator[int]:
    """Serves a proxy. Yields its port."""
    async with egress.served(listener()) as found:
        yield int(found["http_proxy"].rpartition(":")[2])


def egress_to(
    *ports: int,
    mode: Literal["allowlist", "public"] = "allowlist",
    hosts: Sequence[str] = ("127.0.0.1",),
    limits: ProxyLimits = STANDARD,
) -> Egress:
    """Returns the proxy of a task that may reach a server of the test."""
    return Egress(EgressPolicy(mode, hosts, Rules(ports=frozenset(ports))), limits)


async def asked(port: int, request: bytes) -> bytes:
    """Returns all that the proxy answers to some bytes."""
    async with asyncio.timeout(GUARD_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()


async def tunnel(port: int, target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a tunnel through the proxy."""
    async with asyncio.timeout(GUARD_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        return reader, writer
