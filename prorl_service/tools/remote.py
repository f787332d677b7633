"""Servers that the operator names, and their tools: the server checks arguments, and its answers
are cut to a limit. Tasks only choose among the names. Knows no protocol.
"""

import copy
from collections.abc import Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

import httpx
from pydantic import BaseModel, JsonValue, RootModel

from prorl_service.errors import InvalidRequest
from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.tools.spec import ServerSpec
from prorl_service.utils.tasks import TaskOwner

MAX_OUTPUT_BYTES = 32 * 1024
"""Maximum size of one answer, as the model sees it."""


class OperatorServer(Protocol):
    async def start(self, background: TaskOwner) -> None:
        """Returns when rollouts may use it. Raises `ProRLError` if it cannot be used."""


AnyServer = TypeVar("AnyServer", bound=OperatorServer)


class NamedServers(Generic[AnyServer]):
    """All servers of one kind, started while the context is entered."""

    def __init__(self, kind: type[ServerSpec], servers: Mapping[str, AnyServer]) -> None:
        self.background = TaskOwner()
        self._kind = kind
        self._servers = servers

    async def __aenter__(self) -> Self:
        """Raises `ProRLError` for a server that cannot be used."""
        try:
            for server in self._servers.values():
                await server.start(self.background)
        except BaseException:
            await self.background.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.background.close()

    def __getitem__(self, name: str) -> AnyServer:
        """Raises `InvalidRequest` for an unknown name."""
        if name not in self._servers:
            known = ", ".join(sorted(self._servers)) or "none"
            raise InvalidRequest(
                f"no {self._kind.KIND} server {name!r}",
                hint=f"this service has: {known}; `prorl serve {self._kind.OPTION}` adds servers",
            )
        return self._servers[name]


class TooLong(ValueError):
    """An answer exceeds its limit."""


async def read_within(response: httpx.Response, max_bytes: int) -> bytes:
    """Returns the body. Raises `TooLong` for more bytes, and `httpx.HTTPError`."""
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > max_bytes:
            raise TooLong(f"its answer has more than {max_bytes} bytes")
    return bytes(content)


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
