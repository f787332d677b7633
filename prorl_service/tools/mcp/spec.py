"""What the operator says of an MCP server: its name, where it is, which of its tools are offered.

Secrets come from the environment only, and are in no log and no message.
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
"""With the name in capitals behind it: the bearer token for a server with a URL."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class McpSpec:
    name: str
    target: str = field(repr=False)
    """URL of the streamable HTTP transport, or a command line of the stdio transport."""
    tools: tuple[str, ...] = ()
    """The only ones that are offered; none named: all."""
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises `ProRLError` for what can be no server."""
        if not _NAME.fullmatch(self.name):
            raise ProRLError(
                f"{self.name!r} cannot be the name of an MCP server",
                hint="names have small letters, digits and '_': `--mcp corpus=http://...`",
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
    """From `NAME=TARGET` and `NAME=TOOL,TOOL`. The environment forgets the keys: other children
    need no secrets. Raises `ProRLError`."""
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
                f"tools are named for {name!r}, which is no MCP server",
                hint="`--mcp NAME=...` names the server, `--mcp-tools NAME=TOOL,TOOL` its tools",
            )
        names = tuple(tool for tool in map(str.strip, tools.split(",")) if tool)
        if not names:
            raise ProRLError(f"no tools are named for MCP server {name!r}")
        specs[name] = replace(specs[name], tools=names)
    return tuple(specs.values())
