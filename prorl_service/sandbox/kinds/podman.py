"""A sandbox over an image in a container of Podman: needs no daemon and, if rootless, no root.

A service of an ordinary user has Podman's user namespace around its containers, for which it needs a
range of subordinate ids. A service that is root has one, too: the container's root is the host's
`nobody`, and no other user of the host is in it. `engine` says what is inside.
"""

import shutil
from pathlib import Path

from prorl_service.sandbox.host.zygotes import container_user
from prorl_service.sandbox.images import ImageCache
from prorl_service.sandbox.kinds.engine import EngineProvider, found

INSTALL_HINT = "run `prorl install podman`: it installs Podman, or says what is in the way"

OPTIONS = ["--image-volume=ignore", "--http-proxy=false", "--security-opt=unmask=ALL"]


def provider(images: ImageCache, default_image: str | None) -> "PodmanProvider":
    return PodmanProvider(images, default_image)


class PodmanProvider(EngineProvider):
    kind = "podman"

    def __init__(self, images, default_image: str | None) -> None:
        super().__init__(
            command(),
            [*OPTIONS, *_user_namespace()],
            images.image,
            install_hint=INSTALL_HINT,
            default_image=default_image,
            configs=images.config,
        )


def command() -> list[str]:
    """Returns the start of Podman's command lines. Raises `SandboxError`."""
    # crun refuses hosts where cgroup v1 and v2 are both mounted.
    is_hybrid = Path("/sys/fs/cgroup/unified").is_dir()
    runtime = ["--runtime=runc"] if is_hybrid and shutil.which("runc") else []
    return [found("podman", INSTALL_HINT), *runtime]


def _user_namespace() -> list[str]:
    user = container_user()
    return [] if user is None else [f"--uidmap=0:{user}:1", f"--gidmap=0:{user}:1"]
