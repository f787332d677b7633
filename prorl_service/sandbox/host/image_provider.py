"""Kinds whose sandboxes are over images: what is the same whatever makes the container.

Each sandbox sees the image unchanged and may write anywhere in it: the writes go to memory and end
with the sandbox. The user is root of its own namespace, with the capabilities that root needs for
files. Which images there are, and who makes containers of them, is up to the kind.
"""

import errno
import re
from collections.abc import Awaitable, Callable
from typing import Any

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.host import spec
from prorl_service.sandbox.host.provider import ZygoteProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.images.image_config import ImageConfig
from prorl_service.sandbox.images.references import parse

WORKDIR = "/workspace"
HOME = "/root"
USER = 0

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

ConfigSource = Callable[[str], Awaitable[ImageConfig]]
"""Function that gives an image's configuration. Raises `TaskError`."""


def namespaces(limits: SandboxLimits, user: int | str = USER) -> dict[str, Any]:
    return spec.namespaces(limits, workdir=WORKDIR, user=user, of_image=True)


class ImageSandbox(RemoteSandbox):
    def _order(self) -> dict[str, object]:
        environment = spec.environment(home=HOME, user="root")
        user = USER if self._user in (None, "root", "0") else str(self._user)
        return spec.isolated(self._limits, namespaces(self._limits, user), environment)

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


class ImageProvider(ZygoteProvider):
    sandbox_class = ImageSandbox

    def __init__(
        self, *, user: int | None, default_image: str | None, configs: ConfigSource | None
    ) -> None:
        """Tasks without an image get the `default_image`; raises `TaskError` if it is invalid."""
        super().__init__(user=user)
        self._configs = configs
        self._default_image = default_image
        if default_image is not None:
            self.check(None)

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
                f"{self.kind} needs an image, but the task names none",
                hint="name one in the task, or start the service with --default-image",
            )
        return str(parse(image))
