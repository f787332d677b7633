"""Images of the apptainer kind: SIF files in a cache, made of registries, archives, Dockerfiles."""

from prorl_service.sandbox.images.cache import ImageCache, Pulled
from prorl_service.sandbox.images.dockerfiles import context_archive
from prorl_service.sandbox.images.image_config import ImageConfig
from prorl_service.sandbox.images.leases import ImageLease
from prorl_service.sandbox.images.references import Reference, parse
from prorl_service.sandbox.images.store import CachedImage

__all__ = [
    "CachedImage",
    "ImageCache",
    "ImageConfig",
    "ImageLease",
    "Pulled",
    "Reference",
    "context_archive",
    "parse",
]
