"""Options of `prorl ray up`, `NodeOptions` of actors, too. An attribute's docstring is its help."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from pydantic.dataclasses import dataclass

from prorl_service.errors import ProRLError


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    run: str | None = None
    """Name of the run, which an earlier `up` may have begun: journals on the nodes continue
    (default: a new run)."""
    wait_for: NonNegativeInt | None = None
    """Number of services that must answer before the command ends (default: 1, or with --max-nodes
    those of --min-nodes)."""
    wait_s: NonNegativeFloat = 600.0
    """Seconds to wait for them."""
    agent: tuple[str, ...] = ()
    """Import path 'module:Class' of an agent, for the front and all services. Repeatable."""
    serve_config: Path | None = None
    """YAML file of options of each service, as `prorl --config FILE serve` takes it."""
    front_config: Path | None = None
    """YAML file of options of the front, as `prorl --config FILE front` takes it."""
    token_file: Path | None = None
    """File with the bearer token of front and services (default: PRORL_TOKEN, if set, or the token
    of your services on this machine, which `prorl token` prints)."""
    env: Annotated[tuple[str, ...], Parameter(metavar="NAME")] = ()
    """Variable of this command that services and front get, such as a key. Repeatable."""
    host: str | None = None
    """Address on which the front listens (default: that of Ray's head node; with `--address local`,
    loopback)."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the front; 0: a free one, which the run keeps."""
    drain_s: NonNegativeFloat = 10.0
    """Grace period for running rollouts when the run or a service is stopped, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    resource: str | None = None
    """Custom resource of the nodes that get a service, such as 'rollout_node' (default: all
    nodes)."""
    share: Annotated[float, Field(gt=0)] = 1.0
    """Amount of that resource that a service takes: with 0.5 two runs can share a node that has
    1."""
    label: Annotated[tuple[str, ...], Parameter(metavar="KEY=VALUE")] = ()
    """Label that a node must have. Repeatable."""
    cpus: NonNegativeFloat = 0.0
    """CPUs that Ray reserves for each service."""
    min_nodes: NonNegativeInt = 0
    """Fewest nodes to use if their number follows the demand."""
    max_nodes: PositiveInt | None = None
    """Most nodes to use: their number follows the demand, and Ray's autoscaler is asked for them
    (default: all nodes that there are)."""
    state: Path | None = None
    """Directory of journals, logs and addresses on each node (default:
    ~/.local/state/prorl/ray)."""
    python: str | None = None
    """Python interpreter of services and front on each node (default: that of Ray's workers)."""

    @property
    def labels(self) -> dict[str, str]:
        return dict(one.split("=", 1) for one in self.label if "=" in one)

    def resources(self) -> dict[str, float]:
        """Returns what a service takes of its node."""
        return {} if self.resource is None else {self.resource: self.share}

    def check(self) -> None:
        """Raises `ProRLError` for options that contradict each other."""
        if self.max_nodes is not None and self.resource is None:
            raise ProRLError(
                "--max-nodes needs --resource: Ray's autoscaler adds nodes that have it",
                hint="such as `--resource rollout_node`",
            )
        if self.max_nodes is not None and self.min_nodes > self.max_nodes:
            raise ProRLError("--min-nodes is greater than --max-nodes")
        if len(self.labels) != len(self.label):
            raise ProRLError("--label: write labels as KEY=VALUE, each key once")
