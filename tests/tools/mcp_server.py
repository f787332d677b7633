"""An MCP server whose tools misbehave: `MCP_TEST_LOG=FILE python -m tests.tools.mcp_server [PORT]`.

Serves stdio, or HTTP if PORT is given. Lines of FILE record what the server saw.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations

LOG_VARIABLE = "MCP_TEST_LOG"

server = MCPServer("misbehaving", log_level="CRITICAL")
log = Path(os.environ[LOG_VARIABLE])


def note(line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")


@server.tool()
def repeat(text: str, times: int = 1) -> str:
    """Say it again and again."""
    return text * times


@server.tool()
async def sleep(seconds: float) -> str:
    """Sleep, without holding up others."""
    note("sleeping")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("cancelled")
        raise
    return "slept"


@server.tool()
async def freeze(seconds: float) -> str:
    """Hold up everything."""
    note("frozen")
    time.sleep(seconds)  # noqa: ASYNC251
    return "thawed"


@server.tool()
def die() -> str:
    """End at once."""
    note("dying")
    os._exit(3)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def die_once() -> str:
    """End at once, but not twice."""
    if "dying" in log.read_text():
        return "alive"
    return die()


@server.tool()
def refuse() -> str:
    """Fail."""
    raise ToolError("it is refused")


@server.tool()
def picture() -> CallToolResult:
    """Text and an image."""
    image = ImageContent(data="aGk=", mime_type="image/png")
    return CallToolResult(content=[TextContent(text="Look:"), image])


@server.tool()
def environment(variable: str) -> str:
    """A variable of the environment."""
    return os.environ.get(variable, "unset")


if __name__ == "__main__":
    note(f"started {os.getpid()}")
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
