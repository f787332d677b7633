"""Configuration of servers of tools and environments: their names, addresses and keys.

Secrets come from the environment only and never appear in logs or messages.
"""

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self
from urllib.parse import urlsplit

from prorl_service.errors import ProRLError

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ServerSpec:
    KIND: ClassVar[str]
    """Product, as messages name it."""
    OPTION: ClassVar[str]
    """Option that names a server."""
    EXAMPLE: ClassVar[str]
    """Value of that option, for messages."""
    KEY_VARIABLE: ClassVar[str]
    """Prefix of the variable, before the name in capitals, with the server's bearer token."""

    name: str
    url: str = field(repr=False)
    """Base URL, without the path of a route."""
    key: str | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        """Raises `ProRLError` for a bad name or address."""
        if not _NAME.fullmatch(self.name):
            raise ProRLError(
                f"{self.name!r} cannot be the name of {self._title()}",
                hint=f"use lower-case letters, digits and '_': {self._form()}",
            )
        self._check_address()

    def _title(self) -> str:
        return f"a server of {self.KIND}"

    def _form(self) -> str:
        return f"`{self.OPTION} {self.EXAMPLE}`"

    def _check_address(self) -> None:
        """Raises `ProRLError`."""
        if not is_base_url(self.url):
            raise ProRLError(
                f"{self} needs a URL: {self._form()}",
                hint=f"a key goes into {self.KEY_VARIABLE}{self.name.upper()}",
            )

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def __str__(self) -> str:
        return f"{self.KIND} server {self.name!r}"

    @classmethod
    def take(cls, servers: Sequence[str]) -> tuple[Self, ...]:
        """Parses `NAME=ADDRESS`. Takes the keys out of the environment, so that child processes do
        not inherit them. Raises `ProRLError`."""
        specs: dict[str, Self] = {}
        for text in servers:
            name, _, url = text.partition("=")
            if name in specs:
                raise ProRLError(f"{specs[name]} is named twice")
            key = os.environ.pop(cls.KEY_VARIABLE + name.upper(), None)
            specs[name] = cls(name, url.strip(), key=key)
        return tuple(specs.values())


def is_base_url(text: str) -> bool:
    """Whether `text` is an HTTP URL that paths can follow: no query, and no key in it."""
    try:
        parts = urlsplit(text)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return False
    return bool(is_usable) and "@" not in parts.netloc and not (parts.query or parts.fragment)


class NemoGymSpec(ServerSpec):
    __slots__ = ()
    KIND: ClassVar[str] = "NeMo Gym"
    OPTION: ClassVar[str] = "--nemo-gym"
    EXAMPLE: ClassVar[str] = "counter=http://host:port"
    KEY_VARIABLE: ClassVar[str] = "PRORL_NEMO_GYM_KEY_"


class OpenEnvSpec(ServerSpec):
    __slots__ = ()
    KIND: ClassVar[str] = "OpenEnv"
    OPTION: ClassVar[str] = "--openenv"
    EXAMPLE: ClassVar[str] = "wordle=http://host:port"
    KEY_VARIABLE: ClassVar[str] = "PRORL_OPENENV_KEY_"

    @property
    def socket_url(self) -> str:
        """URL of the route that holds one session a connection."""
        return f"ws{self.url.removeprefix('http').rstrip('/')}/ws"


@dataclass(frozen=True, slots=True)
class McpSpec(ServerSpec):
    """`url`: that of the streamable HTTP transport, or a command line of the stdio transport."""

    KIND: ClassVar[str] = "MCP"
    OPTION: ClassVar[str] = "--mcp"
    EXAMPLE: ClassVar[str] = "corpus=http://..."
    KEY_VARIABLE: ClassVar[str] = "PRORL_MCP_KEY_"

    tools: tuple[str, ...] = ()
    """Names of the tools that are offered; all if empty."""

    def _title(self) -> str:
        return "an MCP server"

    def _check_address(self) -> None:
        try:
            is_there = bool(urlsplit(self.url).hostname if self.is_url else self.command)
        except ValueError:
            is_there = False
        if not is_there:
            raise ProRLError(
                f"{self} needs a URL or a command line",
                hint="`--mcp corpus=http://host:port/mcp` or `--mcp 'corpus=command argument'`",
            )
        if not self.is_url and shutil.which(self.command[0]) is None:
            raise ProRLError(f"{self}: no program {self.command[0]!r}")

    @property
    def is_url(self) -> bool:
        return self.url.startswith(("http://", "https://"))

    @property
    def command(self) -> list[str]:
        return shlex.split(self.url)

    @classmethod
    def take_with_tools(cls, servers: Sequence[str], allowed: Sequence[str]) -> tuple[Self, ...]:
        """Parses `NAME=ADDRESS` like `take`, and `NAME=TOOL,TOOL`. Raises `ProRLError`."""
        specs = {spec.name: spec for spec in cls.take(servers)}
        for text in allowed:
            name, _, tools = text.partition("=")
            if name not in specs:
                raise ProRLError(
                    f"tools are named for {name!r}, which is not an MCP server",
                    hint="`--mcp NAME=...` names the server, `--mcp-tools NAME=TOOL,TOOL` its"
                    " tools",
                )
            names = tuple(tool for tool in map(str.strip, tools.split(",")) if tool)
            if not names:
                raise ProRLError(f"no tools are named for {specs[name]}")
            specs[name] = replace(specs[name], tools=names)
        return tuple(specs.values())
