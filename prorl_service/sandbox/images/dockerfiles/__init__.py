"""Images of Dockerfiles, without Docker: checked here, built by the best builder of this host."""

from prorl_service.sandbox.images.dockerfiles.context import context_archive
from prorl_service.sandbox.images.dockerfiles.ladder import DockerfileSource, Ladder

__all__ = ["DockerfileSource", "Ladder", "context_archive"]
