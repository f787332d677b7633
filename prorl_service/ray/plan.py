"""A run on a cluster as data: its processes, what is known of them, and nodes.

Pure. Actors get plans as arguments and return reports, so all of it can be pickled.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from prorl_service.front.discovery import EVERYWHERE
from prorl_service.net.credentials import TOKEN_VARIABLE, state_directory
from prorl_service.ray.options import NodeOptions

HEAD = "node:__internal_head__"
"""Resource of Ray's head node."""
KEY_VARIABLE = "PRORL_BACKEND_KEY"
SERVICES = "services"
"""Folder of a run's directory in which its services are announced."""
FRONT = "front"
LOCAL = "local"
"""Address that stands for a Ray cluster of this machine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One front, and a service on each node. Secrets are in `token` and `environment` only."""

    run: str
    token: str = field(repr=False)
    nodes: NodeOptions = NodeOptions()
    host: str | None = None
    """Address on which the front listens; None: that of its node."""
    port: int = 0
    """Port of the front; 0: a free one, which it keeps."""
    drain_s: float = 10.0
    agents: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    tokenizer: str | None = None
    backend_key: str | None = field(default=None, repr=False)
    slots: int = 1
    """Rollouts that keep a service busy, by its options."""
    serve: tuple[str, ...] = ()
    """More options of `prorl serve`."""
    serve_config: str = ""
    """Content of its file of options."""
    front_config: str = ""
    """Content of the front's file of options."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of services and front, such as keys."""

    def service(self, name: str, address: str) -> "ProcessPlan":
        """Returns the service of the node at `address`. `name`: its name at the front."""
        announced = ("--announce", str(self.directory() / SERVICES / f"{name}.json"))
        options = (*announced, "--announce-host", address, *self.serve)
        config = self.serve_config
        return self._process("serve", name, address, options, config=config, host=address)

    def front(self, address: str) -> "ProcessPlan":
        """Returns the front on the node at `address`."""
        services = ("--services", str(self.directory() / SERVICES), "--wait-for", "0")
        urls = [word for url in self.backends for word in ("--backend", url)]
        tokenizer = () if self.tokenizer is None else ("--tokenizer", self.tokenizer)
        return self._process(
            "front",
            FRONT,
            address if self.host in (None, *EVERYWHERE) else str(self.host),
            (*services, *urls, *tokenizer),
            config=self.front_config,
            secrets={} if self.backend_key is None else {KEY_VARIABLE: self.backend_key},
            host=self.host or address,
            port=self.port,
        )

    def directory(self) -> Path:
        """Returns the run's directory on this node. Raises `RuntimeError` for a user without a
        home."""
        return (self.nodes.state or state_directory() / "ray") / self.run

    def _process(
        self,
        kind: str,
        name: str,
        address: str,
        options: tuple[str, ...],
        *,
        secrets: Mapping[str, str] = MappingProxyType({}),
        **others: Any,
    ) -> "ProcessPlan":
        directory = self.directory()
        agents = [word for agent in self.agents for word in ("--agent", agent)]
        journal = ("--journal", str(directory / "journals" / f"{name}.sqlite"))
        common = ("--run", self.run, *journal, "--resume", "--drain-s", f"{self.drain_s:g}")
        return ProcessPlan(
            kind=kind,
            name=name,
            directory=directory,
            address=address,
            options=(*common, *agents, *options),
            environment={**self.environment, **secrets, TOKEN_VARIABLE: self.token},
            python=self.nodes.python,
            drain_s=self.drain_s,
            **others,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """A process that is kept running on one node."""

    kind: str
    """Command of `prorl`."""
    name: str
    """Name of its files in the run's directory."""
    directory: Path
    address: str
    """Address by which others reach it."""
    host: str
    """Address on which it listens."""
    port: int = 0
    options: tuple[str, ...] = ()
    config: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    python: str | None = None
    drain_s: float = 10.0

    @property
    def log(self) -> Path:
        return self.directory / "logs" / f"{self.name}.log"

    def url(self, port: int) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{port}"


# --- what is known ------------------------------------------------------------------------------


class State(StrEnum):
    """State of a process, or of the actor that has it."""

    WAITING = "waiting"
    """Ray has not started its actor: the node has no room."""
    STARTING = "starting"
    SERVING = "serving"
    RESTARTING = "restarting"
    """It ended, and begins again in a moment."""
    UNREACHABLE = "unreachable"
    """Its actor does not answer; Ray restarts it, or its node is gone."""
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Report:
    """State of a kept process."""

    number: int
    """Number of this report; another one means that something changed."""
    state: State
    since: float
    """Unix time of the last change of the state."""
    url: str = ""
    pid: int = 0
    restarts: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's service, as the supervisor and the front know it."""

    name: str
    node_id: str
    address: str
    report: Report
    load: int = 0
    """Rollouts that it has."""
    slots: int = 0
    """Rollouts that keep it busy; 0 until the front knows it."""
    takes_rollouts: bool = False


@dataclass(frozen=True, slots=True)
class RunStatus:
    run: str
    front: Report
    nodes: list[NodeStatus]
    others: int
    """Nodes for rollouts that have no service now."""
    wanted: int | None
    """Nodes that the demand calls for; None: all that there are."""
    running: int
    """Rollouts at services."""
    queued: int
    """Rollouts that wait at the front."""
    is_stopping: bool = False


# --- nodes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    node_id: str
    address: str
    name: str
    """Name of its service, unique among nodes that are alive."""
    is_head: bool


def alive(found: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Returns the nodes in `ray.nodes()` that are alive, in the order of their ids.

    A node is named after its address, so that its service finds its journal again. Of nodes with
    one address all but the first also bear the end of their id.
    """
    nodes: list[Node] = []
    for one in sorted(found, key=lambda one: str(one["NodeID"])):
        if one["Alive"]:
            address, node_id = str(one["NodeManagerAddress"]), str(one["NodeID"])
            name = address.replace(":", "-")
            if any(known.name == name for known in nodes):
                name = f"{name}-{node_id[-8:]}"
            nodes.append(Node(node_id, address, name, HEAD in one["Resources"]))
    return nodes


def chosen(found: Sequence[Mapping[str, Any]], wanted: NodeOptions) -> list[Node]:
    """Returns the nodes that are alive and for rollouts."""
    fitting = {str(one["NodeID"]) for one in found if _fits(one, wanted)}
    return [node for node in alive(found) if node.node_id in fitting]


def _fits(node: Mapping[str, Any], wanted: NodeOptions) -> bool:
    total, labels = node["Resources"], node.get("Labels") or {}
    has_room = wanted.resource is None or total.get(wanted.resource, 0.0) >= wanted.share
    return has_room and all(labels.get(key) == value for key, value in wanted.labels.items())
