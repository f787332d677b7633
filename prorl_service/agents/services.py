"""Services of the operator that agents may use in addition to sandboxes: MCP servers, a judge,
installed packages.

A task may ask for them; it cannot bring its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

from prorl_service.errors import InvalidRequest
from prorl_service.gateway.doors import Doors
from prorl_service.rewards.judge.judge import Judge
from prorl_service.tools.base import Tool
from prorl_service.tools.mcp.servers import McpServers


@dataclass(frozen=True, slots=True)
class Requirements:
    """Services and packages that an agent needs for one task."""

    mcp: Sequence[str] = ()
    """Names of MCP servers, all of whose tools are offered to the model."""
    judge: bool = False
    packages: Mapping[str, str] = field(default_factory=dict)
    """Modules that have to be installed, and the extra of this package that brings each."""


@dataclass(frozen=True, slots=True)
class OperatorServices:
    mcp: McpServers = field(default_factory=McpServers)
    judge: Judge | None = None
    doors: Doors = field(default_factory=Doors)
    """Gateways of rollouts whose programs run elsewhere."""

    def tools(self, uses: Requirements) -> list[Tool]:
        """Returns the MCP servers' tools. Raises `InvalidRequest` if part of `uses` is missing."""
        if uses.judge and self.judge is None:
            raise InvalidRequest(
                "the task needs a judge, and this service has none",
                hint="start it with one: `prorl serve --judge-url ... --judge-model ...`",
            )
        for module, extra in uses.packages.items():
            if find_spec(module) is None:
                raise InvalidRequest(
                    f"the task needs the module {module}, which this service lacks",
                    hint=f"where it runs: pip install 'prorl-service[{extra}]'; start it again",
                )
        return list(self.mcp.tools(uses.mcp))
