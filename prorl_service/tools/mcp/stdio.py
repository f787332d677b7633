"""Runs an MCP server as a child and speaks with it over its standard input and output.

The client library's own transport needs time quadratic in the length of an answer (one of 16 MB
holds up the event loop for 4 s) and does not tell when the server ends. This one reads in linear
time, up to a limit. What the server prints on standard error belongs into the service's log.
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
"""For the server to end by itself when its standard input ends, as the protocol wants it."""


@asynccontextmanager
async def stdio_transport(
    command: Sequence[str], *, max_answer_bytes: int, on_end: Callable[[], None]
) -> "AsyncIterator[TransportStreams]":
    """`on_end` is called when the server can no longer be spoken with. Raises `OSError`."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=max_answer_bytes,
    )
    to_client, from_server = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
    to_server, from_client = anyio.create_memory_object_stream["SessionMessage"](0)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, process, to_client, on_end)
            tasks.start_soon(_write, process, from_client)
            yield from_server, to_server
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _read(
    process: asyncio.subprocess.Process,
    to_client: "MemoryObjectSendStream[SessionMessage | Exception]",
    on_end: Callable[[], None],
) -> None:
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    assert process.stdout is not None
    async with to_client:
        with suppress(anyio.BrokenResourceError):  # nobody listens any more
            try:
                while line := await process.stdout.readline():
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValueError:
                        log.warning("an MCP server printed what is no message: %.200r", line)
                    else:
                        await to_client.send(SessionMessage(message))
            except ValueError as error:  # longer than the limit
                log.warning("an MCP server answered too much: %s", error)
            on_end()


async def _write(
    process: asyncio.subprocess.Process, from_client: "MemoryObjectReceiveStream[SessionMessage]"
) -> None:
    assert process.stdin is not None
    async with from_client:
        with suppress(OSError, RuntimeError):  # it has ended, which `_read` tells
            async for item in from_client:
                line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(line.encode() + b"\n")
                await process.stdin.drain()


async def _end(process: asyncio.subprocess.Process) -> None:
    """And all that it started."""
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


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Returns when nobody holds its output any more. It may be held up by what it still writes."""
    assert process.stdout is not None
    while await process.stdout.read(2**16):
        pass
    await process.wait()
