"""Configuration of an MCP server: its name, its address, which of its tools are offered.

Secrets come from the environment only and never appear in logs or messages.
"""

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from prorl_service.errors import ProRLError

KEY_VARIABLE = "PRORL_MCP_KEY_"
"""Prefix of the variable, before the name in capitals, with the bearer token for a URL."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class McpSpec:
    name: str
    target: str = field(repr=False)
    """URL of the streamable HTTP transport, or a command line of the stdio transport."""
    tools: tuple[str, ...] = ()
    """Names of the tools that are offered; all if empty."""
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises `ProRLError` for a bad name, URL or command."""
        if not _NAME.fullmatch(self.name):
            raise ProRLError(
                f"{self.name!r} cannot be the name of an MCP server",
                hint="use lower-case letters, digits and '_': `--mcp corpus=http://...`",
            )
        try:
            is_there = bool(urlsplit(self.target).hostname if self.is_url else self.command)
        except ValueError:
            is_there = False
        if not is_there:
            raise ProRLError(
                f"MCP server {self.name!r} needs a URL or a command line",
                hint="`--mcp corpus=http://host:port/mcp` or `--mcp 'corpus=command argument'`",
            )
        if not self.is_url and shutil.which(self.command[0]) is None:
            raise ProRLError(f"MCP server {self.name!r}: no program {self.command[0]!r}")

    @property
    def is_url(self) -> bool:
        return self.target.startswith(("http://", "https://"))

    @property
    def command(self) -> list[str]:
        return shlex.split(self.target)

    def __str__(self) -> str:
        return f"MCP server {self.name!r}"


def take_specs(servers: Sequence[str], allowed: Sequence[str]) -> tuple[McpSpec, ...]:
    """Parses `NAME=TARGET` and `NAME=TOOL,TOOL`. Takes the keys out of the environment, so that
    child processes do not inherit them. Raises `ProRLError`."""
    specs: dict[str, McpSpec] = {}
    for text in servers:
        name, _, target = text.partition("=")
        if name in specs:
            raise ProRLError(f"MCP server {name!r} is named twice")
        spec = McpSpec(name, target.strip())
        specs[name] = replace(spec, key=os.environ.pop(KEY_VARIABLE + name.upper(), None))
    for text in allowed:
        name, _, tools = text.partition("=")
        if name not in specs:
            raise ProRLError(
                f"tools are named for {name!r}, which is not an MCP server",
                hint="`--mcp NAME=...` names the server, `--mcp-tools NAME=TOOL,TOOL` its tools",
            )
        names = tuple(tool for tool in map(str.strip, tools.split(",")) if tool)
        if not names:
            raise ProRLError(f"no tools are named for MCP server {name!r}")
        specs[name] = replace(specs[name], tools=names)
    return tuple(specs.values())
