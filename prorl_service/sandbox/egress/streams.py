"""Bytes between a client and a server, until neither sends any."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

COPY_BYTES = 1 << 16
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_END = b"\r\n"


@dataclass(frozen=True, slots=True)
class ByteStream:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def of(cls, connection: socket.socket, limit: int = COPY_BYTES) -> "ByteStream":
        return cls(*await asyncio.open_connection(sock=connection, limit=limit))

    async def close(self) -> None:
        """Returns when what was written has left."""
        self.writer.close()
        await self.writer.wait_closed()

    def abort(self) -> None:
        """Ends the connection now. Harmless after `close`."""
        self.writer.transport.abort()


@asynccontextmanager
async def until_idle(seconds: float) -> AsyncIterator[Callable[[], None]]:
    """Raises `TimeoutError` when the function that is yielded was not called for `seconds`."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds) as limit:

        def seen() -> None:
            if not limit.expired():
                limit.reschedule(loop.time() + seconds)

        yield seen


async def tunnel(client: ByteStream, server: ByteStream, seen: Callable[[], None]) -> None:
    """Copies both ways until both sides have ended."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_copy(client, server, seen))
        group.create_task(_copy(server, client, seen))
    await server.close()


async def exchange(
    client: ByteStream, server: ByteStream, length: int | None, seen: Callable[[], None]
) -> None:
    """Copies one body of a client, and what the server answers. Whatever else the client sends is
    not for this server."""
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(_copy_body(client, server, length, seen))
        await _copy(server, client, seen)
        sending.cancel()


async def _copy(source: ByteStream, target: ByteStream, seen: Callable[[], None]) -> None:
    """Copies to the end of `source`, and passes that end on."""
    try:
        while data := await source.reader.read(COPY_BYTES):
            await _pass_on(data, target, seen)
    except OSError:  # either side has left
        pass
    finally:
        with contextlib.suppress(OSError, RuntimeError):
            target.writer.write_eof()


async def _copy_body(
    source: ByteStream, target: ByteStream, length: int | None, seen: Callable[[], None]
) -> None:
    if length is None:
        await _copy_chunks(source, target, seen)
    else:
        await _copy_bytes(source, target, length, seen)


async def _copy_chunks(source: ByteStream, target: ByteStream, seen: Callable[[], None]) -> None:
    """Copies chunks, without what may follow their sizes and the last of them. Raises `ValueError`
    for what cannot be read."""
    size = None
    while size != 0:
        found = _CHUNK.fullmatch(await source.reader.readuntil(_END))
        if found is None:
            raise ValueError("the body is not in chunks")
        size = int(found[1], 16)
        await _pass_on(b"%x\r\n" % size, target, seen)
        if size:
            await _copy_bytes(source, target, size, seen)
            if await source.reader.readexactly(len(_END)) != _END:
                raise ValueError("a chunk is longer than it says")
            await _pass_on(_END, target, seen)
    while await source.reader.readuntil(_END) != _END:
        pass
    await _pass_on(_END, target, seen)


async def _copy_bytes(
    source: ByteStream, target: ByteStream, count: int, seen: Callable[[], None]
) -> None:
    while count:
        data = await source.reader.read(min(count, COPY_BYTES))
        if not data:
            raise EOFError("the client left within a body")
        count -= len(data)
        await _pass_on(data, target, seen)


async def _pass_on(data: bytes, target: ByteStream, seen: Callable[[], None]) -> None:
    seen()
    target.writer.write(data)
    await target.writer.drain()
