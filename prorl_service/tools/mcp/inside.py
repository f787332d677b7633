"""MCP servers that a task brings: commands, run in the rollout's sandbox as its user.

A server speaks over a connection that it opens to the service from inside. It lives as long as its
sandbox; one that ends stays away, because the policy may have ended it: its tools answer with that.
"""

import asyncio
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from pydantic import JsonValue

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.tools.mcp.stdio import lines_transport
from prorl_service.tools.mcp.tool import (
    MAX_ANSWER_BYTES,
    be_quiet,
    cause,
    list_tools,
    to_result,
    tool_of,
)
from prorl_service.tools.remote import clipped

if TYPE_CHECKING:
    import mcp
    import mcp_types

START_TIMEOUT_S = 60.0
"""Budget of the command until it has said which tools it has."""
SAID_CHARS = 2000
_CONNECT = """\
import os, socket, sys
if os.getpgrp() != os.getpid():
    os.setsid()
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for descriptor in (0, 1):
    os.dup2(connection.fileno(), descriptor)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class ServerInside:
    def __init__(self, client: "mcp.Client", listed: "Sequence[mcp_types.Tool]") -> None:
        self.tools = [tool_of(self, tool) for tool in listed]
        self._client = client

    async def call(
        self, name: str, arguments: dict[str, JsonValue], *, timeout_s: float
    ) -> ToolResult:
        try:
            async with asyncio.timeout(timeout_s):
                return to_result(await self._client.call_tool(name, arguments))
        except TimeoutError:
            return ToolResult(f"[timed out after {timeout_s:g} s]", is_error=True)
        except Exception as error:  # from the server, the connection or the answer
            return ToolResult(clipped(f"{name} failed: {cause(error)}"), is_error=True)


@asynccontextmanager
async def started(
    sandbox: Sandbox, name: str, command: Sequence[str], log: str
) -> AsyncIterator[ServerInside]:
    """Starts `command` in the sandbox; its standard error goes to the file `log` there.

    Raises `TaskError` if it does not become an MCP server, and `SandboxError`.
    """
    be_quiet()
    first: asyncio.Future[ServerInside] = asyncio.get_running_loop().create_future()
    # A client must be left by the task that entered it; stages of a rollout are several tasks.
    staying = asyncio.create_task(_stay_connected(sandbox, command, log, first), name=name)
    try:
        yield await first
    except _NotStarted as error:
        raise TaskError(f"MCP server {name!r} of the task: {error}") from error
    finally:
        staying.cancel()
        await asyncio.wait([staying])


class _NotStarted(Exception):
    """What a command said that is no MCP server."""


async def _stay_connected(
    sandbox: Sandbox, command: Sequence[str], log: str, first: "asyncio.Future[ServerInside]"
) -> None:
    try:
        # The import takes a second.
        Client = (await asyncio.to_thread(import_module, "mcp")).Client
        async with asyncio.timeout(START_TIMEOUT_S) as budget:
            async with (
                _connected(sandbox, command, log) as (reader, writer),
                Client(lines_transport(reader, writer, lambda: None)) as client,
            ):
                first.set_result(ServerInside(client, await list_tools(client)))
                budget.reschedule(None)
                await asyncio.Event().wait()
    except Exception as error:
        if first.done():
            return
        if not isinstance(error, SandboxError):
            error = _NotStarted(f"{cause(error)}; it said: {await _tail(sandbox, log)}")
        first.set_exception(error)


@asynccontextmanager
async def _connected(
    sandbox: Sandbox, command: Sequence[str], log: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    listener = await sandbox.listen(0)
    with listener:
        listener.setblocking(False)
        port = str(listener.getsockname()[1])
        started = shlex.join([sandbox.python, "-c", _CONNECT, port, *command])
        script = f"{started} < /dev/null > /dev/null 2> {shlex.quote(log)} &"
        await sandbox.call_tool("bash", {"command": script}, timeout_s=START_TIMEOUT_S)
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_ANSWER_BYTES)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _tail(sandbox: Sandbox, log: str) -> str:
    try:
        said = await sandbox.download(log)
    except (OSError, SandboxError):
        return "nothing"
    return said.decode(errors="replace").strip()[-SAID_CHARS:] or "nothing"
