"""A tool of an MCP server, and what its answers look like to a model. Holds no connection.

Servers' answers are not trusted: they are text for the model, cut if it is long.
"""

import json
import logging
from typing import TYPE_CHECKING

from prorl_service.sandbox.base import ToolResult
from prorl_service.tools.remote import RemoteTool, ToolServer, clipped

if TYPE_CHECKING:  # imported late: an extra, and 25 MB of memory
    import mcp
    import mcp_types

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Maximum size of one answer on the wire. The connection does not survive a longer one."""


def tool_of(server: ToolServer, listed: "mcp_types.Tool") -> RemoteTool:
    hints = listed.annotations
    may_repeat = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
    described = (listed.name, listed.description or "", listed.input_schema)
    return RemoteTool(*described, server, may_repeat=may_repeat)


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
