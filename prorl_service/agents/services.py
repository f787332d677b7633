"""Services of the operator that agents may use in addition to sandboxes: servers of tools (MCP) and
of environments (NeMo Gym, OpenEnv), a judge, a simulated user, installed packages.

A task may ask for them; it cannot bring its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec

from prorl_service.errors import InvalidRequest
from prorl_service.gateway.doors import Doors
from prorl_service.gateway.serving import ProgramConnections
from prorl_service.net.chat_model import ChatModel
from prorl_service.rewards.judge.judge import Judge
from prorl_service.sandbox.egress.policy import Rules
from prorl_service.tools.base import Tool
from prorl_service.tools.mcp.servers import McpServers
from prorl_service.tools.nemo_gym.servers import NemoGymServers
from prorl_service.tools.openenv.servers import OpenEnvServers, Wanted


@dataclass(frozen=True, slots=True)
class Requirements:
    """Services and packages that an agent needs for one task."""

    mcp: Sequence[str] = ()
    """Names of MCP servers, all of whose tools are offered to the model."""
    judge: bool = False
    user: bool = False
    """Whether a simulated user is talked to."""
    openenv: Wanted | None = None
    """OpenEnv server that holds the rollout's environment."""
    nemo_gym: str | None = None
    """Name of the NeMo Gym server that has the rollout's session."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Modules that have to be installed, and the extra of this package that brings each."""

    def also(self, packages: Mapping[str, str]) -> "Requirements":
        """Returns these, with further packages."""
        return replace(self, packages={**self.packages, **packages})


@dataclass(frozen=True, slots=True)
class OperatorServices:
    mcp: McpServers = field(default_factory=McpServers)
    judge: Judge | None = None
    network: Rules | None = None
    """Rules for the network that tasks ask for; None: they get none."""
    doors: Doors = field(default_factory=Doors)
    """Gateways of rollouts whose programs run elsewhere."""
    connections: ProgramConnections = field(default_factory=ProgramConnections)
    """Connections of programs in sandboxes to their gateways."""
    openenv: OpenEnvServers = field(default_factory=OpenEnvServers)
    nemo_gym: NemoGymServers = field(default_factory=NemoGymServers)
    user: ChatModel | None = None
    """Model that plays users."""

    def tools(self, uses: Requirements) -> list[Tool]:
        """Returns the servers' tools. Raises `InvalidRequest` if part of `uses` is missing."""
        for problem in self.lacks(uses):
            raise problem
        environment = [] if uses.openenv is None else self.openenv.tools(uses.openenv)
        return [*self.mcp.tools(uses.mcp), *environment]

    def lacks(self, uses: Requirements) -> Iterator[InvalidRequest]:
        """Yields an error for each part of `uses` that is missing."""
        if uses.judge and self.judge is None:
            yield InvalidRequest(
                "the task needs a judge, and this service has none",
                hint="start it with one: `prorl serve --judge-url ... --judge-model ...`",
            )
        if uses.user and self.user is None:
            yield InvalidRequest(
                "the task needs a simulated user, and this service has none",
                hint="start it with one: `prorl serve --user-url ... --user-model ...`",
            )
        for module, extra in uses.packages.items():
            if find_spec(module) is None:
                yield InvalidRequest(
                    f"the task needs the module {module}, which this service lacks",
                    hint=f"where it runs: pip install 'prorl-service[{extra}]'; start it again",
                )
        checks: list[Callable[[], object]] = [partial(self.mcp.tools, [one]) for one in uses.mcp]
        if uses.nemo_gym is not None:
            checks.append(partial(self.nemo_gym.__getitem__, uses.nemo_gym))
        if uses.openenv is not None:
            checks.append(partial(self.openenv.tools, uses.openenv))
        for check in checks:
            try:
                check()
            except InvalidRequest as problem:
                yield problem
