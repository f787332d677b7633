"""Sandboxes, in which untrusted commands run. `provider` picks a kind; `base` is the interface."""

from functools import partial
from typing import TYPE_CHECKING, Literal

from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.images import ImageOptions
from prorl_service.sandbox.kinds import KINDS, make
from prorl_service.sandbox.kinds.auto import AutoProvider, first_working

if TYPE_CHECKING:
    SandboxKind = str
else:
    SandboxKind = Literal[("auto", *KINDS)]


def provider(
    kind: SandboxKind, *, default_image: str | None = None, images: ImageOptions | None = None
) -> SandboxProvider:
    """Returns the provider of `kind`; `auto` is the strongest that works here, never `process`.

    Tasks without an image get the `default_image`; with one, `auto` is a kind with images for all
    tasks. Raises `SandboxError`, with what to do, when the kind does not work here, and `TaskError`
    for an invalid default image.
    """
    images = images or ImageOptions()
    if kind == "auto":
        isolating = {name: entry.has_images for name, entry in KINDS.items() if entry.isolates}
        with_images, without = (
            [
                partial(make, name, images, default_image)
                for name, has in isolating.items()
                if has is wanted
            ]
            for wanted in (True, False)
        )
        return first_working(with_images) if default_image else AutoProvider(with_images, without)
    if default_image is not None and not KINDS[kind].has_images:
        raise SandboxError(f"{kind} has no images: remove the default image", retryable=False)
    return make(kind, images, default_image)
