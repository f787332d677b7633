"""Images of the apptainer kind: SIF files in a cache, made of registries, archives, Dockerfiles."""

from prorl_service.sandbox.images.cache import ImageCache, Pulled
from prorl_service.sandbox.images.dockerfiles import context_archive
from prorl_service.sandbox.images.image_config import ImageConfig
from prorl_service.sandbox.images.leases import Lease
from prorl_service.sandbox.images.references import Reference, parse
from prorl_service.sandbox.images.store import Entry

__all__ = [
    "Entry",
    "ImageCache",
    "ImageConfig",
    "Lease",
    "Pulled",
    "Reference",
    "context_archive",
    "parse",
]
