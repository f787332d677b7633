"""Sandboxes, in which untrusted commands run. `provider` picks a kind; `base` is the interface."""

from typing import Literal

from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.images import ImageCache
from prorl_service.sandbox.kinds.apptainer import ApptainerProvider
from prorl_service.sandbox.kinds.auto import AutoProvider
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from prorl_service.sandbox.kinds.process import ProcessSandboxProvider

SandboxKind = Literal["auto", "apptainer", "bubblewrap", "process"]


def provider(
    kind: SandboxKind, *, default_image: str | None = None, images: ImageCache | None = None
) -> SandboxProvider:
    """Returns the provider of `kind`; `auto` is the strongest that works here, never `process`.

    Tasks without an image get the `default_image`; with one, `auto` is Apptainer for all tasks.
    `images` defaults to this machine's cache. Raises `SandboxError`, with what to do, when the kind
    does not work here, and `TaskError` for an invalid default image.
    """

    def apptainer() -> ApptainerProvider:
        cache = images or ImageCache()
        return ApptainerProvider(cache.image, default_image=default_image, configs=cache.config)

    match kind:
        case "apptainer":
            return apptainer()
        case "auto":
            return apptainer() if default_image else AutoProvider(apptainer, BubblewrapProvider)
    if default_image is not None:
        raise SandboxError(f"{kind} has no images: remove the default image", retryable=False)
    return BubblewrapProvider() if kind == "bubblewrap" else ProcessSandboxProvider()
