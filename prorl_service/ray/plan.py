"""What a run on a cluster consists of, as data: its processes, and what is known of them.

Pure. Actors get plans as arguments and return reports, so all of it can be pickled.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from prorl_service.front.discovery import EVERYWHERE
from prorl_service.net.credentials import TOKEN_VARIABLE, state_directory

KEY_VARIABLE = "PRORL_BACKEND_KEY"
SERVICES = "services"
"""Folder of a run's directory in which its services are announced."""
FRONT = "front"
LOCAL = "local"
"""Address that stands for a Ray cluster of this machine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """Which nodes get a service, and what each service takes of its node."""

    resource: str | None = None
    """Custom resource that marks nodes for rollouts; None: all nodes."""
    share: float = 1.0
    """Amount of that resource that a service takes."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have."""
    cpus: float = 0.0
    """CPUs that Ray reserves for a service."""
    least: int = 0
    most: int | None = None
    """Most nodes, whose number follows the demand; None: all that there are."""

    def resources(self) -> dict[str, float]:
        return {} if self.resource is None else {self.resource: self.share}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One front, and a service on each node. Secrets are in `token` and `environment` only."""

    run: str
    token: str = field(repr=False)
    nodes: NodePlan = NodePlan()
    state: Path | None = None
    """Directory of runs on each node; None: the user's own."""
    python: str | None = None
    """Interpreter of the processes; None: that of Ray's workers."""
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
        directory = run_directory(self.state, self.run)
        return ProcessPlan(
            kind="serve",
            name=name,
            directory=directory,
            address=address,
            options=(
                *("--announce", str(directory / SERVICES / f"{name}.json")),
                *("--announce-host", address),
                *self._both(directory, name),
                *self.serve,
            ),
            config=self.serve_config,
            environment={**self.environment, TOKEN_VARIABLE: self.token},
            python=self.python,
            drain_s=self.drain_s,
        )

    def front(self, address: str) -> "ProcessPlan":
        """Returns the front on the node at `address`."""
        directory = run_directory(self.state, self.run)
        urls = [word for url in self.backends for word in ("--backend", url)]
        tokenizer = () if self.tokenizer is None else ("--tokenizer", self.tokenizer)
        key = {} if self.backend_key is None else {KEY_VARIABLE: self.backend_key}
        return ProcessPlan(
            kind="front",
            name=FRONT,
            directory=directory,
            address=address if self.host in (None, *EVERYWHERE) else str(self.host),
            listens_at=self.host,
            port=self.port,
            options=(
                *("--services", str(directory / SERVICES), "--wait-for", "0"),
                *self._both(directory, FRONT),
                *urls,
                *tokenizer,
            ),
            config=self.front_config,
            environment={**self.environment, **key, TOKEN_VARIABLE: self.token},
            python=self.python,
            drain_s=self.drain_s,
        )

    def _both(self, directory: Path, name: str) -> list[str]:
        agents = [word for agent in self.agents for word in ("--agent", agent)]
        journal = ["--journal", str(directory / "journals" / f"{name}.sqlite")]
        drain = ["--drain-s", f"{self.drain_s:g}"]
        return ["--run", self.run, *journal, "--resume", *drain, *agents]


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
    listens_at: str | None = None
    """Address on which it listens; None: `address`."""
    port: int = 0
    options: tuple[str, ...] = ()
    config: str = ""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    python: str | None = None
    drain_s: float = 10.0

    @property
    def host(self) -> str:
        return self.listens_at or self.address

    @property
    def log(self) -> Path:
        return self.directory / "logs" / f"{self.name}.log"

    def url(self, port: int) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{port}"


def run_directory(state: Path | None, run: str) -> Path:
    """Returns the run's directory on this node. Raises `RuntimeError` for a user without a home."""
    return (state or state_directory() / "ray") / run


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
