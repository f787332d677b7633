"""A tool of an MCP server, and what its answers look like to a model. Holds no connection.

Servers' answers are not trusted: they are text for the model, cut if it is long.
"""

import json
import logging
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import JsonValue

from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.tools.remote import any_arguments, clipped

if TYPE_CHECKING:  # imported late: an extra, and 25 MB of memory
    import mcp
    import mcp_types

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Maximum size of one answer on the wire. The connection does not survive a longer one."""


class Server(Protocol):
    async def call(
        self, tool: "McpTool", arguments: dict[str, JsonValue], *, timeout_s: float
    ) -> ToolResult:
        """Raises `ToolServerError`."""


class McpTool:
    """One tool of a server, as a `Tool` that does not use the sandbox."""

    def __init__(self, server: Server, listed: "mcp_types.Tool") -> None:
        self.name = listed.name
        self.description = listed.description or ""
        self.arguments = any_arguments(listed.input_schema)
        hints = listed.annotations
        self.may_repeat = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
        self._server = server

    async def call(self, sandbox: Sandbox, arguments: Any, *, timeout_s: float) -> ToolResult:
        """Raises `ToolServerError` if the server is away for all of `timeout_s`."""
        return await self._server.call(self, arguments.root, timeout_s=timeout_s)


async def list_tools(client: "mcp.Client") -> list["mcp_types.Tool"]:
    tools, cursor = [], None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tools


def cause(error: BaseException) -> str:
    """Returns the message of the first error, which task groups wrap."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return str(error) or repr(error)


def to_result(answer: "mcp_types.CallToolResult") -> ToolResult:
    parts = [_as_text(block) for block in answer.content]
    if not parts and answer.structured_content is not None:
        parts = [json.dumps(answer.structured_content, ensure_ascii=False)]
    return ToolResult(clipped("\n".join(parts).strip()), is_error=answer.is_error)


def _as_text(block: "mcp_types.ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "resource_link":
            return f"[{block.name}: {block.uri}]"
        case "resource" if hasattr(block.resource, "text"):
            return str(block.resource.text)
        case kind:
            return f"[{kind}, which cannot be shown]"


def be_quiet() -> None:
    """Silences the client's log of requests, because a URL may hold a key."""
    for name in ("httpx2", "mcp", "client"):
        logging.getLogger(name).setLevel(logging.WARNING)
