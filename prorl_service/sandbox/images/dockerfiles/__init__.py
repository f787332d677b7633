"""Images of Dockerfiles, without Docker: made by the best builder of this host."""

from prorl_service.sandbox.images.dockerfiles.builders import DockerfileBuilders, DockerfileSource
from prorl_service.sandbox.images.dockerfiles.context import context_archive

__all__ = ["DockerfileBuilders", "DockerfileSource", "context_archive"]
