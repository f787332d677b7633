"""The input of a builder of Dockerfiles, and the error of an instruction that failed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from prorl_service.errors import ProRLError, SandboxError, TaskError
from prorl_service.sandbox.images.apptainer_build import is_network_trouble
from prorl_service.sandbox.images.dockerfiles.context import Context
from prorl_service.sandbox.images.dockerfiles.syntax import Dockerfile, Instruction
from prorl_service.sandbox.images.dockerfiles.variables import Variables
from prorl_service.sandbox.images.image_config import ImageConfig

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHOWN_BYTES = 2000
"""Bytes of the end of a command's output that an error shows."""
_STEP = re.compile(r'building at STEP ".*?": ', re.DOTALL)


@dataclass(frozen=True, slots=True)
class BaseImage:
    """An image that a Dockerfile names, from the cache."""

    path: Path
    """SIF file, or root directory."""
    oci: Mapping[str, Any]
    """OCI configuration, as far as it is known."""


@dataclass(frozen=True, slots=True)
class DockerfileBuild:
    """One build."""

    shown: str
    """Name that users know it by."""
    context: Context
    bases: Mapping[str, BaseImage]
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

    def beyond(self, builder: str, why: str, instruction: Instruction | None = None) -> TaskError:
        """Returns the error of something that a builder cannot do."""
        message = f"{builder} cannot do it: {why}"
        if instruction is None:
            return TaskError(f"{self.shown}: {message}")
        return self.context.dockerfile.error(instruction, message)


class DockerfileBuilder(Protocol):
    name: str

    async def trial(self, workspace: Path) -> str | None:
        """Tries the builder on this host. Returns why it does not work; None if it does."""

    def obstacle(self, build: DockerfileBuild) -> TaskError | None:
        """Returns the error of the first thing that this builder cannot do (`beyond`)."""

    async def make(self, build: DockerfileBuild, made: Path) -> Mapping[str, Any]:
        """Makes the SIF file `made`. Returns the OCI configuration that it does not have inside.
        Raises `ProRLError`."""


def failed(dockerfile: Dockerfile, instruction: Instruction, said: str) -> ProRLError:
    """Returns the error of an instruction whose command said that."""
    output, _, why = said.rpartition("Error: ")
    why = _STEP.sub("", why).strip()
    parts = (why, output.strip()[-SHOWN_BYTES:])
    error = dockerfile.error(instruction, "\n".join(part for part in parts if part))
    if is_network_trouble(said):
        return SandboxError(error.message, hint="check the network of this host")
    return error
