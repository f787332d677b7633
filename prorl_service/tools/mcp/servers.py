"""Tools of MCP servers, called by the service because sandboxes have no network.

The operator names the servers; a task only chooses among their names. Each has one connection,
shared by all rollouts and reopened when it is lost. A tool that fails gives the model an answer; a
server that is away fails the rollout. Servers are trusted, their answers are not: an answer is text
for the model, cut if it is long.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from pydantic import JsonValue

from prorl_service.errors import ProRLError, ToolServerError
from prorl_service.sandbox.base import ToolResult
from prorl_service.tools.mcp.stdio import stdio_transport
from prorl_service.tools.mcp.tool import (
    MAX_ANSWER_BYTES,
    be_quiet,
    cause,
    list_tools,
    to_result,
    tool_of,
)
from prorl_service.tools.remote import NamedServers, RemoteTool, clipped
from prorl_service.tools.spec import McpSpec
from prorl_service.utils.tasks import TaskOwner

if TYPE_CHECKING:  # imported late: an extra, and 25 MB of memory
    import mcp
    import mcp_types
    from mcp.client import Transport

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 60.0
"""Budget of the handshake and the list of tools; npx and uvx first download their server."""
CHECK_TIMEOUT_S = 10.0
"""Longest time to list the tools after a failed call. The service reconnects to a slower server,
which ends the process of one that is a command."""
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 30.0
STEADY_S = 60.0
"""Age at which a connection is steady: its loss is not blamed on the cause of an earlier one."""


class McpServers(NamedServers["McpServer"]):
    """Connected while the context is entered, which fails where one cannot be used: prompts need
    its tools."""

    def __init__(self, specs: Iterable[McpSpec] = ()) -> None:
        super().__init__(McpSpec, {spec.name: McpServer(spec) for spec in specs})

    def tools(self, names: Iterable[str]) -> list[RemoteTool]:
        """Returns the servers' tools, in order. Raises `InvalidRequest` for an unknown name."""
        return [tool for name in names for tool in self[name].tools]


class McpServer:
    """The connection to one server."""

    def __init__(self, spec: McpSpec) -> None:
        self.tools: Sequence[RemoteTool] = ()
        """Tools of the first connection, kept so that all prompts are alike."""
        self._spec = spec
        self._client: mcp.Client | None = None
        self._connected = asyncio.Event()
        self._lost = asyncio.Event()
        self._check: asyncio.Task[None] | None = None

    async def start(self, background: TaskOwner) -> None:
        """Returns when the server's tools are known. Raises `ProRLError`."""
        be_quiet()
        self._background = background
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        background.start(self._stay_connected(first), name=str(self._spec))
        await first
        log.info("%s offers %s", self._spec, ", ".join(tool.name for tool in self.tools))

    async def call(
        self, name: str, arguments: dict[str, JsonValue], *, timeout_s: float
    ) -> ToolResult:
        """Raises `ToolServerError`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call(name, arguments)
        except TimeoutError:
            if self._client is None:
                raise ToolServerError(
                    f"{self._spec} was not there within {timeout_s:g} s",
                    hint="the service keeps trying; its log says why",
                ) from None
            self._checked(self._client)
            return ToolResult(f"[timed out after {timeout_s:g} s]", is_error=True)
        except Exception as error:  # from the server, the connection or the answer
            return ToolResult(clipped(f"{name} failed: {cause(error)}"), is_error=True)

    async def _call(self, name: str, arguments: dict[str, JsonValue]) -> ToolResult:
        """Calls again if the connection is lost and the server says that repeating does no harm."""
        may_repeat = any(tool.may_repeat for tool in self.tools if tool.name == name)
        for is_last in (False, True) if may_repeat else (True,):
            client = await self._connection()
            try:
                return to_result(await client.call_tool(name, arguments))
            except Exception:
                check = self._checked(client)
                if is_last:
                    raise
                await asyncio.wait([check])
                if client is self._client:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _connection(self) -> "mcp.Client":
        while self._client is None:
            await self._connected.wait()
        return self._client

    def _checked(self, client: "mcp.Client") -> "asyncio.Task[None]":
        """Starts a check that the server still answers, or returns the one that is running."""
        if self._check is None or self._check.done():
            checking = self._see_whether_lost(client)
            self._check = self._background.run_once(checking, name=f"check {self._spec}")
        return self._check

    async def _see_whether_lost(self, client: "mcp.Client") -> None:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await client.list_tools(cache_mode="refresh")
        except Exception as error:
            if client is self._client:
                log.warning("%s was lost: %s", self._spec, cause(error))
                self._lost.set()
                self._disconnect()

    def _disconnect(self) -> None:
        self._client = None
        self._connected.clear()

    def _leave(self) -> None:
        self._disconnect()
        if self._check is not None:
            self._check.cancel()

    async def _stay_connected(self, first: "asyncio.Future[None]") -> None:
        """Reconnects until cancelled. `first` gets the outcome of the first attempt."""
        delay_s = FIRST_DELAY_S
        while True:
            started = time.monotonic()
            try:
                await self._connect_once(first)
            except Exception as error:
                log.warning("%s: %s", self._spec, cause(error))
                if not first.done():
                    first.set_exception(_unusable(self._spec, error))
            is_steady = time.monotonic() - started > STEADY_S
            delay_s = FIRST_DELAY_S if is_steady else min(2 * delay_s, LONGEST_DELAY_S)
            await asyncio.sleep(delay_s)

    async def _connect_once(self, first: "asyncio.Future[None]") -> None:
        """Connects. Returns, or raises, when the connection has been lost."""
        from mcp import Client

        async with AsyncExitStack() as resources:
            self._lost.clear()
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport = _transport(self._spec, self._lost.set)
                client = await resources.enter_async_context(Client(transport))
                listed = await list_tools(client)
            if not first.done():
                self.tools = [tool_of(self, tool) for tool in _allowed(self._spec, listed)]
                first.set_result(None)
            self._client = client
            self._connected.set()
            resources.callback(self._leave)  # before the client closes, which may take seconds
            await self._lost.wait()


def _transport(spec: McpSpec, on_end: Callable[[], None]) -> "Transport":
    limit = MAX_ANSWER_BYTES
    if not spec.is_url:
        return stdio_transport(spec.command, max_answer_bytes=limit, on_end=on_end)
    from prorl_service.tools.mcp.http import http_transport

    return http_transport(spec.url, spec.key, max_answer_bytes=limit)


def _allowed(spec: McpSpec, listed: list["mcp_types.Tool"]) -> list["mcp_types.Tool"]:
    there = [tool.name for tool in listed]
    for name in spec.tools:
        if name not in there:
            raise ProRLError(f"it has no tool {name!r}; its tools: {', '.join(there)}")
    return [tool for tool in listed if not spec.tools or tool.name in spec.tools]


def _unusable(spec: McpSpec, error: Exception) -> ProRLError:
    hint = "check that it runs" if spec.is_url else "read what it printed; try the command"
    if isinstance(error, ImportError):
        hint = "pip install 'prorl-service[mcp]'"
    return ProRLError(f"{spec} cannot be used: {cause(error)}", hint=hint)
