"""A sandbox over an image in a container of Docker, whose daemon runs on this machine.

Rootless Docker serves its own user. A daemon that is root must map containers to other users
(`userns-remap`), and the service must be root, too, since it ends processes of theirs. Whoever may
use the daemon's socket is root on the host: nothing of the socket is in a sandbox. `kinds.engine`
has the rest.
"""

from prorl_service.sandbox.images import ImageOptions, ImageStore
from prorl_service.sandbox.images.engine_images import ContainerEngine, EngineImages
from prorl_service.sandbox.kinds.engine import EngineProvider, found

INSTALL_HINT = (
    "use rootless Docker, or as root a daemon with userns-remap, on this machine; "
    "or Podman: `prorl install podman`"
)

OPTIONS = ["--security-opt=systempaths=unconfined"]


def provider(images: ImageOptions, default_image: str | None) -> EngineProvider:
    return EngineProvider(
        engine(), OPTIONS, images, install_hint=INSTALL_HINT, default_image=default_image
    )


def open_images(options: ImageOptions) -> ImageStore:
    return EngineImages(engine(), options)


def engine() -> ContainerEngine:
    """Raises `SandboxError` if Docker's command line is not installed."""
    return ContainerEngine([found("docker", INSTALL_HINT)], is_podman=False)
