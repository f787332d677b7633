"""Where untrusted commands run. `provider` chooses a kind; `base` says what a sandbox is."""

from typing import Literal

from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.images import ImageCache
from prorl_service.sandbox.kinds.apptainer import ApptainerProvider, ImageSource
from prorl_service.sandbox.kinds.auto import AutoProvider
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from prorl_service.sandbox.kinds.process import ProcessSandboxProvider

SandboxKind = Literal["auto", "apptainer", "bubblewrap", "process"]


def provider(
    kind: SandboxKind, *, default_image: str | None = None, images: ImageSource | None = None
) -> SandboxProvider:
    """The provider of that kind; `auto` is the strongest that works here, never `process`.

    With a `default_image`, which tasks without one get, that is Apptainer for all tasks. `images`
    defaults to the cache of this machine. Raises `SandboxError`, with what to do, when the kind
    does not work here, and `TaskError` for a default image that cannot be one.
    """

    def apptainer() -> ApptainerProvider:
        return ApptainerProvider(images or ImageCache().image, default_image=default_image)

    match kind:
        case "apptainer":
            return apptainer()
        case "auto":
            return apptainer() if default_image else AutoProvider(apptainer, BubblewrapProvider)
    if default_image is not None:
        raise SandboxError(f"{kind} has no images, not even a default one", retryable=False)
    return BubblewrapProvider() if kind == "bubblewrap" else ProcessSandboxProvider()
