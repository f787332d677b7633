"""Tools of servers: the server checks arguments, and its answers are cut to a limit."""

import copy
from typing import Any, Protocol

from pydantic import BaseModel, JsonValue, RootModel

from prorl_service.sandbox.base import Sandbox, ToolResult

MAX_OUTPUT_BYTES = 32 * 1024
"""Maximum size of one answer, as the model sees it."""


def any_arguments(schema: dict[str, Any]) -> type[BaseModel]:
    """Returns a model of any object that shows `schema`; the server checks against it."""

    class Arguments(RootModel[dict[str, JsonValue]]):
        @classmethod
        def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
            return copy.deepcopy(schema)

    return Arguments


class ToolServer(Protocol):
    async def call(
        self, name: str, arguments: dict[str, JsonValue], *, timeout_s: float
    ) -> ToolResult:
        """Calls a tool of the server. Raises `ToolServerError`."""


class RemoteTool:
    """A tool of a server, as a `Tool` that does not use the sandbox."""

    def __init__(
        self,
        name: str,
        description: str,
        schema: dict[str, Any],
        server: ToolServer | None,
        *,
        may_repeat: bool = False,
    ) -> None:
        """`server` None: the tool is only shown."""
        self.name = name
        self.description = description
        self.arguments = any_arguments(schema)
        self.may_repeat = may_repeat
        self._server = server

    async def call(
        self, sandbox: Sandbox | None, arguments: Any, *, timeout_s: float
    ) -> ToolResult:
        """Raises `ToolServerError`."""
        assert self._server is not None
        return await self._server.call(self.name, arguments.root, timeout_s=timeout_s)


def clipped(text: str) -> str:
    """Clips the middle, like the tools inside sandboxes."""
    whole = text.encode(errors="replace")
    if len(whole) <= MAX_OUTPUT_BYTES:
        return whole.decode()
    half = MAX_OUTPUT_BYTES // 2
    head, tail = (part.decode(errors="ignore") for part in (whole[:half], whole[-half:]))
    return f"{head}\n[... {len(whole) - 2 * half} bytes omitted ...]\n{tail}"
