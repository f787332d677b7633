"""Images of sandboxes: SIF files in a cache of ours, or the store of a container engine."""

from prorl_service.sandbox.images.base import ImageOptions, ImageStore, Pulled
from prorl_service.sandbox.images.cache import ImageCache
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
    "ImageOptions",
    "ImageStore",
    "Pulled",
    "Reference",
    "context_archive",
    "parse",
]
