"""Stdio transport for MCP servers: the standard input and output of a process, as messages.

The client library's own transport needs time quadratic in the length of an answer (one of 16 MB
blocks the event loop for 4 s) and does not report when the server ends. This one reads in linear
time, up to a limit. The server's standard error goes to the service's log.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

log = logging.getLogger(__name__)

GRACE_S = 2.0
"""Time for the server to end by itself after its standard input ends, as the protocol wants."""


@asynccontextmanager
async def stdio_transport(
    command: Sequence[str], *, max_answer_bytes: int, on_end: Callable[[], None]
) -> "AsyncIterator[TransportStreams]":
    """Calls `on_end` when the server can no longer be reached. Raises `OSError`."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=max_answer_bytes,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        async with lines_transport(process.stdout, process.stdin, on_end) as streams:
            yield streams
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


@asynccontextmanager
async def lines_transport(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_end: Callable[[], None]
) -> "AsyncIterator[TransportStreams]":
    """A message is a line, at most as long as the reader's limit. Calls `on_end` when nothing more
    can come."""
    to_client, from_server = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
    to_server, from_client = anyio.create_memory_object_stream["SessionMessage"](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, reader, to_client, on_end)
        tasks.start_soon(_write, writer, from_client)
        yield from_server, to_server
        tasks.cancel_scope.cancel()


async def _read(
    reader: asyncio.StreamReader,
    to_client: "MemoryObjectSendStream[SessionMessage | Exception]",
    on_end: Callable[[], None],
) -> None:
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    async with to_client:
        with suppress(anyio.BrokenResourceError):  # nobody listens any more
            try:
                while line := await reader.readline():
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        log.warning(
                            "an MCP server printed a line that is not a message: %.200r", line
                        )
                    else:
                        await to_client.send(SessionMessage(message))
            except ValueError as error:  # longer than the limit
                log.warning("an MCP server's answer is too long: %s", error)
            on_end()


async def _write(
    writer: asyncio.StreamWriter, from_client: "MemoryObjectReceiveStream[SessionMessage]"
) -> None:
    async with from_client:
        with suppress(OSError, RuntimeError):  # the server has ended; `_read` reports it
            async for item in from_client:
                line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(line.encode() + b"\n")
                await writer.drain()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the server and all that it started."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(GRACE_S):
            await _ended(process)
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await _ended(process)
    # A process that left the group may hold the output; the loop could not be closed.
    process._transport.close()  # type: ignore[attr-defined]


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Waits until the process and all holders of its output end. Reads on, so that none blocks."""
    assert process.stdout is not None
    while await process.stdout.read(2**16):
        pass
    await process.wait()
