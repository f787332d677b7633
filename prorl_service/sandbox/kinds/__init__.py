"""The kinds of sandbox, one line each: settings, `prorl doctor`, `auto` and the tests read them.

The module of a kind has its name and a function `provider(images, default_image)`, which returns
its `SandboxProvider` or raises `SandboxError` with the reason why the kind does not work here. With
images, it has `open_images(options)`, which returns their store.
"""

from dataclasses import dataclass
from importlib import import_module

from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.images import ImageOptions, ImageStore


@dataclass(frozen=True, slots=True)
class KindEntry:
    has_images: bool = False
    """True if its sandboxes are of images; False if they have the host's own programs."""
    isolates: bool = True
    """False for a kind that only tests may use: neither `auto` nor `prorl doctor` looks at it."""


KINDS = {
    "apptainer": KindEntry(has_images=True),
    "podman": KindEntry(has_images=True),
    "docker": KindEntry(has_images=True),
    "bubblewrap": KindEntry(),
    "process": KindEntry(isolates=False),
}
"""Kinds keyed by name, in the order in which `auto` tries them."""


def make(kind: str, images: ImageOptions, default_image: str | None) -> SandboxProvider:
    """Calls the `provider` of the kind's module."""
    module = import_module(f"{__name__}.{kind}")
    made: SandboxProvider = module.provider(images, default_image)
    return made


def open_images(kind: str, options: ImageOptions) -> ImageStore:
    """Opens the store of a kind with images. Raises `SandboxError`, `TaskError`."""
    module = import_module(f"{__name__}.{kind}")
    opened: ImageStore = module.open_images(options)
    return opened
