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

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.cache import programs_directory
from prorl_service.sandbox.host import bundle, spec
from prorl_service.sandbox.host.provider import ZygoteProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.host.zygotes import container_user, try_once
from prorl_service.sandbox.images import ImageCache
from prorl_service.sandbox.images.image_config import ImageConfig
from prorl_service.sandbox.images.references import parse

WORKDIR = "/workspace"
HOME = "/root"
USER = 0

INSTALL_HINT = "run `prorl install sandboxes`: it installs Apptainer, or says what is in the way"

_FILE_ERRNOS = (
    *(errno.EPERM, errno.ENOENT, errno.ENOEXEC, errno.EACCES),
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP),
)
IMAGE_HINT = "it needs bash, and files that the containers' user can read: see docs/images.md"
# Errors that an image may be to blame for: a sandbox of an empty image has started on this host.
_IMAGE_AT_FAULT = re.compile(
    r"could not open image|read the squashfs image|not a directory"
    rf"|\[Errno ({'|'.join(str(number) for number in _FILE_ERRNOS)})\]"
)

OPTIONS = [
    # Root of a user namespace that maps only one user: it controls what is mounted inside.
    *("--fakeroot", "--ignore-subuid", "--ignore-fakeroot-command"),
    # The zygote is the first process of its PID namespace, so that its end ends everything.
    *("--containall", "--no-init", "--no-eval", "--cwd", "/"),
    *("--no-mount", "home,tmp,sys,hostfs,cwd,bind-paths"),
]

ImageSource = Callable[[str], AbstractAsyncContextManager[Path]]
"""Function that gives an image's file or directory while it is in use. Raises `TaskError`."""
ConfigSource = Callable[[str], Awaitable[ImageConfig]]
"""Function that gives an image's configuration. Raises `TaskError`."""


class ApptainerSandbox(RemoteSandbox):
    def _order(self) -> dict[str, object]:
        environment = spec.environment(home=HOME, user="root")
        user = USER if self._user in (None, "root", "0") else str(self._user)
        namespaces = spec.namespaces(self._limits, workdir=WORKDIR, user=user, of_image=True)
        return spec.isolated(self._limits, namespaces, environment)

    async def _start(self) -> None:
        try:
            await super()._start()
        except SandboxError as error:
            if not _IMAGE_AT_FAULT.search(error.message) or self._container_at_fault():
                raise
            raise TaskError(
                f"the image {self._image} cannot be used: {error.message}", hint=IMAGE_HINT
            ) from error

        assert self._zygote is not None
        self._zygote.has_served = True

    def _container_at_fault(self) -> bool:
        """Returns whether the container may be at fault: with a dead one, files are missing."""
        zygote = self._zygote
        return zygote is not None and (zygote.has_served or not zygote.usable)


def provider(images: ImageCache, default_image: str | None) -> "ApptainerProvider":
    return ApptainerProvider(images.image, default_image=default_image, configs=images.config)


class ApptainerProvider(ZygoteProvider):
    kind = "apptainer"
    sandbox_class = ApptainerSandbox

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
        self._images = images
        self._configs = configs
        self._default_image = default_image
        if default_image is not None:
            self.check(None)
        self._apptainer = _find_apptainer()
        self._runtime = bundle.directory()
        self._try()
        super().__init__(user=container_user())

    async def image_config(self, image: str) -> ImageConfig:
        if self._configs is None:
            return ImageConfig()
        return await self._configs(self._key(image))

    def _key(self, image: str | None, user: str | None = None) -> str:
        """Returns the full reference, so that an image has one zygote whatever tasks call it."""
        if image is None:
            image = self._default_image
        if image is None:
            raise TaskError(
                "apptainer needs an image, but the task names none",
                hint="name one in the task, or start the service with --default-image",
            )
        return str(parse(image))

    async def _launch(self, key: str, resources: AsyncExitStack) -> list[str]:
        path = await resources.enter_async_context(self._images(key))
        return self._command(path, spec.ZYGOTE)

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
        namespaces = spec.namespaces(SandboxLimits(), workdir=WORKDIR, user=USER, of_image=True)
        with tempfile.TemporaryDirectory(prefix="prorl-") as image:
            for name in ("", "dev", "proc", "etc", "tmp", "root"):
                path = Path(image, name)
                path.mkdir(exist_ok=True)
                if user is not None:
                    os.chown(path, user, user)
            command = self._command(Path(image), spec.PROBE, json.dumps(namespaces))
            try_once("Apptainer", command, hint=INSTALL_HINT)


def _find_apptainer() -> str:
    path = shutil.which("apptainer") or shutil.which("singularity")
    if path is None:
        raise SandboxError("Apptainer is not installed", hint=INSTALL_HINT, retryable=False)
    return path
