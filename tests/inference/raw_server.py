"""A server that sends exactly the bytes that a test gives it."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Behaviour of a server on one connection."""

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
TIMEOUT_S = 20


@asynccontextmanager
async def server_that(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Yields the server's URL."""

    talks: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())
        try:
            await talk(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(TIMEOUT_S):
        yield f"http{'s' if tls else ''}://127.0.0.1:{port}"
    server.close()
    for one in talks:
        if one is not None:
            one.cancel()
    await asyncio.gather(*(one for one in talks if one is not None))


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Returns the head and the body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    return head, await reader.readexactly(int(length[1]) if length else 0)


def answering(*answers: bytes) -> Talk:
    """Returns a talk that sends one answer for each request of a connection, and then no more."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await read_request(reader)
            writer.write(answer)
        await reader.read()

    return talk
