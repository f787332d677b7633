"""What a builder of Dockerfiles gets and gives: one interface for all rungs of the ladder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prorl_service.errors import ProRLError
from prorl_service.sandbox.images.dockerfiles.context import Context
from prorl_service.sandbox.images.dockerfiles.syntax import Instruction
from prorl_service.sandbox.images.dockerfiles.variables import Variables
from prorl_service.sandbox.images.image_config import ImageConfig

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Base:
    """An image that a Dockerfile names, from the cache."""

    path: Path
    """SIF file, or root directory."""
    oci: Mapping[str, Any]
    """OCI configuration, as far as it is known."""


@dataclass(frozen=True, slots=True)
class Work:
    """One build."""

    shown: str
    """Name that users know it by."""
    context: Context
    bases: Mapping[str, Base]
    """Images by their names in the file."""
    workspace: Path
    """Directory for everything that the build writes."""
    network: bool
    """True if commands of RUN use the host's network."""
    timeout_s: float

    def environment_of(self, name: str) -> Variables:
        """Returns an image's variables, with the PATH that builders give to one without."""
        base = self.bases.get(name)
        return {"PATH": PATH, **ImageConfig.of_oci(base.oci if base else {}).environment}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What a builder cannot do."""

    why: str
    instruction: Instruction | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """What `apptainer build` makes the image of."""

    uri: str
    oci: Mapping[str, Any] = field(default_factory=dict)
    """OCI configuration, where the image will not have it inside."""


class Rung(Protocol):
    name: str

    async def trial(self, workspace: Path) -> str | None:
        """Tries the builder on this host. Returns why it does not work; None if it does."""

    def obstacle(self, work: Work) -> Obstacle | None:
        """Returns the first thing that this builder cannot do."""

    async def make(self, work: Work) -> Made:
        """Builds as far as `apptainer build` goes on. Raises `ProRLError`."""

    def explain(self, work: Work, messages: str, error: ProRLError) -> ProRLError:
        """Returns a clearer error for one of `apptainer build`, whose messages these are."""
