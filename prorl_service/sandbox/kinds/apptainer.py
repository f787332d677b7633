"""A sandbox over an image in an Apptainer container: needs no root, no daemon, no setuid program.

Apptainer starts one container per image, in 0.1 s; every sandbox of that image is forked from it
in 8 ms, into PID, mount, network, IPC, UTS, cgroup and user namespaces of its own (`zygotes`,
`execd.namespaces`). It sees the image unchanged and may write anywhere in it: the writes go to
memory and end with the sandbox. The only files of the host are the execution server's own,
read-only. The user is root of its own namespace, with the capabilities that root needs for files;
on the host it is the service's user, or `nobody` if that is root. Rare kernel interfaces are
filtered (`seccomp`).

Limits on the whole sandbox: processes (Linux >= 5.14), written data, output. Limits on each
process: file size and private memory; `execd.memory` and `cgroups` limit total memory. Needs
Linux >= 5.11 (overlays in user namespaces) and Apptainer >= 1.1. Files of the image must belong to
root, or, if the image is a directory, to the container's user: others can be read, not written.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.cache import programs_directory
from prorl_service.sandbox.host import bundle, spec
from prorl_service.sandbox.host.image_provider import ConfigSource, ImageProvider, namespaces
from prorl_service.sandbox.host.zygotes import Container, container_user, try_once
from prorl_service.sandbox.images import ImageCache, ImageOptions

INSTALL_HINT = "run `prorl install sandboxes`: it installs Apptainer, or says what is in the way"

OPTIONS = [
    # Root of a user namespace that maps only one user: it controls what is mounted inside.
    *("--fakeroot", "--ignore-subuid", "--ignore-fakeroot-command"),
    # The zygote is the first process of its PID namespace, so that its end ends everything.
    *("--containall", "--no-init", "--no-eval", "--cwd", "/"),
    *("--no-mount", "home,tmp,sys,hostfs,cwd,bind-paths"),
]

ImageSource = Callable[[str], AbstractAsyncContextManager[Path]]
"""Function that gives an image's file or directory while it is in use. Raises `TaskError`."""


def provider(options: ImageOptions, default_image: str | None) -> "ApptainerProvider":
    images = open_images(options)
    return ApptainerProvider(images.image, default_image=default_image, configs=images.config)


def open_images(options: ImageOptions) -> ImageCache:
    return ImageCache(
        options.root,
        budget_bytes=options.budget_bytes,
        evict_one=options.evict_one,
        bases=options.bases,
        build_network=options.build_network,
    )


class ApptainerProvider(ImageProvider):
    kind = "apptainer"

    def __init__(
        self,
        images: ImageSource,
        *,
        default_image: str | None = None,
        configs: ConfigSource | None = None,
    ) -> None:
        """Tries Apptainer once. Raises `SandboxError` with the reason if it does not work.

        Tasks without an image get the `default_image`; raises `TaskError` if that is invalid.
        """
        super().__init__(user=container_user(), default_image=default_image, configs=configs)
        self._images = images
        self._apptainer = _find_apptainer()
        self._runtime = bundle.directory()
        self._try()

    async def _launch(self, key: str, resources: AsyncExitStack) -> Container:
        path = await resources.enter_async_context(self._images(key))
        return Container(self._command(path, spec.ZYGOTE))

    def _command(self, image: Path, *program: str) -> list[str]:
        return [
            *(self._apptainer, "--silent", "exec", *OPTIONS),
            *("--bind", f"{self._runtime}:{bundle.INSIDE}:ro"),
            *("--bind", f"{programs_directory()}:{bundle.PROGRAMS_INSIDE}:ro", str(image)),
            *bundle.server(*program),
        ]

    def _try(self) -> None:
        """Starts a sandbox of an empty image, up to its first command."""
        user = container_user()
        with tempfile.TemporaryDirectory(prefix="prorl-") as image:
            for name in ("", "dev", "proc", "etc", "tmp", "root"):
                path = Path(image, name)
                path.mkdir(exist_ok=True)
                if user is not None:
                    os.chown(path, user, user)
            command = self._command(
                Path(image), spec.PROBE, json.dumps(namespaces(SandboxLimits()))
            )
            try_once("Apptainer", command, hint=INSTALL_HINT)


def _find_apptainer() -> str:
    path = shutil.which("apptainer") or shutil.which("singularity")
    if path is None:
        raise SandboxError("Apptainer is not installed", hint=INSTALL_HINT, retryable=False)
    return path
