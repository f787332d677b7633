"""A sandbox over an image in a container of Podman: needs no daemon and, if rootless, no root.

A service of an ordinary user has Podman's user namespace around its containers, for which it needs
a range of subordinate ids. A service that is root has one, too: the container's root is the host's
`nobody`, and no other user of the host is in it. `kinds.engine` has the rest.
"""

import shutil
from pathlib import Path

from prorl_service.sandbox.host.zygotes import container_user
from prorl_service.sandbox.images import ImageOptions, ImageStore
from prorl_service.sandbox.images.engine_images import ContainerEngine, EngineImages
from prorl_service.sandbox.kinds.engine import EngineProvider, found

INSTALL_HINT = "run `prorl install podman`: it installs Podman, or says what is in the way"

OPTIONS = ["--image-volume=ignore", "--http-proxy=false", "--security-opt=unmask=ALL"]


def provider(images: ImageOptions, default_image: str | None) -> EngineProvider:
    return EngineProvider(
        engine(),
        [*OPTIONS, *_user_namespace()],
        images,
        install_hint=INSTALL_HINT,
        default_image=default_image,
    )


def open_images(options: ImageOptions) -> ImageStore:
    return EngineImages(engine(), options)


def engine() -> ContainerEngine:
    """Raises `SandboxError` if Podman is not installed."""
    # crun refuses hosts where cgroup v1 and v2 are both mounted.
    is_hybrid = Path("/sys/fs/cgroup/unified").is_dir()
    runtime = ["--runtime=runc"] if is_hybrid and shutil.which("runc") else []
    return ContainerEngine([found("podman", INSTALL_HINT), *runtime], is_podman=True)


def _user_namespace() -> list[str]:
    user = container_user()
    return [] if user is None else [f"--uidmap=0:{user}:1", f"--gidmap=0:{user}:1"]
