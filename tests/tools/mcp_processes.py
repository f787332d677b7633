"""The misbehaving MCP server as a process, over either transport."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import psutil

from prorl_service.local import free_port
from prorl_service.sandbox.base import ToolResult
from prorl_service.testing import FakeSandbox
from prorl_service.tools.mcp.servers import McpServers
from prorl_service.tools.spec import McpSpec

Transport = Literal["stdio", "http"]
COMMAND = f"{sys.executable} -m tests.tools.mcp_server"


class Misbehaving:
    """The tools of one server, called as in a rollout; `log` records what the server saw."""

    def __init__(self, servers: McpServers, log: Path, http: "HttpServer | None") -> None:
        self.tools = {tool.name: tool for tool in servers.tools(["mis"])}
        self.http = http
        self.log = log

    async def call(self, name: str, *, timeout_s: float = 30, **arguments: Any) -> ToolResult:
        tool = self.tools[name]
        sandbox = FakeSandbox(lambda name, arguments: ToolResult("never called"))
        return await tool.call(
            sandbox, tool.arguments.model_validate(arguments), timeout_s=timeout_s
        )

    def saw(self, line: str) -> int:
        return self.log.read_text().splitlines().count(line)

    async def until_saw(self, line: str, times: int = 1) -> None:
        """Waits without a deadline: the test's own timeout is the budget."""
        while self.saw(line) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def started(self) -> list[int]:
        """Returns the ids of the server's processes, in order."""
        lines = self.log.read_text().splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("started ")]

    def running(self) -> list[int]:
        return [pid for pid in self.started() if psutil.pid_exists(pid)]


class HttpServer:
    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/mcp"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self._process = subprocess.Popen([*COMMAND.split(), str(self._port)])  # noqa: ASYNC220
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@asynccontextmanager
async def misbehaving(
    transport: Transport, log: Path, tools: tuple[str, ...] = ()
) -> AsyncIterator[Misbehaving]:
    """Runs the server; `MCP_TEST_LOG` must be `log` in the environment."""
    assert os.environ["MCP_TEST_LOG"] == str(log)
    http = HttpServer() if transport == "http" else None
    try:
        if http is not None:
            await http.start()
        spec = McpSpec("mis", COMMAND if http is None else http.url, tools)
        async with McpServers([spec]) as servers:
            yield Misbehaving(servers, log, http)
    finally:
        if http is not None:
            http.stop()
