"""What agents may use of the operator's beside sandboxes: MCP servers and a judge.

A task may ask for them by name; it cannot bring its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from prorl_service.errors import InvalidRequest
from prorl_service.rewards.judge.judge import Judge
from prorl_service.tools.base import Tool
from prorl_service.tools.mcp.servers import McpServers


@dataclass(frozen=True, slots=True)
class Requirements:
    """What an agent needs for one task."""

    mcp: Sequence[str] = ()
    """Names of MCP servers, all of whose tools are offered to the model."""
    judge: bool = False


@dataclass(frozen=True, slots=True)
class OperatorServices:
    mcp: McpServers = field(default_factory=McpServers)
    judge: Judge | None = None

    def tools(self, uses: Requirements) -> list[Tool]:
        """Those of the MCP servers. Raises `InvalidRequest` if anything of `uses` is not there."""
        if uses.judge and self.judge is None:
            raise InvalidRequest(
                "no judge, and the task wants one",
                hint="the operator names one: `prorl serve --judge-url ... --judge-model ...`",
            )
        return list(self.mcp.tools(uses.mcp))
