"""The strongest kinds that work here: Apptainer for tasks with an image, bubblewrap for others.

If one of the two does not work, its tasks are refused with the reason. Never `process`.
"""

import logging
from collections.abc import Callable, Sequence

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import Sandbox, SandboxLimits, SandboxProvider
from prorl_service.sandbox.images.image_config import ImageConfig

log = logging.getLogger(__name__)


class AutoProvider(SandboxProvider):
    def __init__(
        self,
        with_image: Callable[[], SandboxProvider],
        without_image: Callable[[], SandboxProvider],
    ) -> None:
        """Tries both kinds. Raises `SandboxError` with both reasons if both fail."""
        self._with_image = _working(with_image)
        self._without_image = _working(without_image)
        both = (self._with_image, self._without_image)
        missing = [one for one in both if isinstance(one, _Missing)]
        if len(missing) == 2:
            raise SandboxError(
                f"no sandbox works here: {'; '.join(one.why.message for one in missing)}",
                hint="; ".join(one.why.hint for one in missing),
                retryable=False,
            )
        self.kind = "+".join(one.kind for one in both if one not in missing)
        for one in missing:
            log.warning("only %s sandboxes work here: %s", self.kind, one.why.message)

    def _of(self, image: str | None) -> SandboxProvider:
        return self._without_image if image is None else self._with_image

    def create(
        self, *, image: str | None, limits: SandboxLimits, user: str | None = None
    ) -> Sandbox:
        return self._of(image).create(image=image, limits=limits, user=user)

    def check(self, image: str | None) -> None:
        self._of(image).check(image)

    async def image_config(self, image: str) -> ImageConfig:
        return await self._with_image.image_config(image)

    def prewarm(self, images: Sequence[str | None]) -> None:
        for provider in (self._with_image, self._without_image):
            provider.prewarm([image for image in images if self._of(image) is provider])

    async def evict_image(self, wait_s: float) -> bool:
        return await self._with_image.evict_image(wait_s)

    async def close(self) -> None:
        await self._with_image.close()
        await self._without_image.close()


class _Missing(SandboxProvider):
    """Placeholder for a kind that does not work here."""

    kind = "missing"

    def __init__(self, why: SandboxError) -> None:
        self.why = why

    def create(
        self, *, image: str | None, limits: SandboxLimits, user: str | None = None
    ) -> Sandbox:
        raise self._refusal(image)

    def check(self, image: str | None) -> None:
        raise self._refusal(image)

    def _refusal(self, image: str | None) -> TaskError:
        if image is None:
            wanted = "tasks without an image"
            instead = "name an image, start the service with --default-image"
        else:
            wanted, instead = f"the image {image!r}", "submit the task without an image"
        return TaskError(
            f"this service has no sandbox for {wanted}: {self.why.message}",
            hint=f"{instead}, or {self.why.hint}",
        )


def _working(make: Callable[[], SandboxProvider]) -> SandboxProvider:
    try:
        return make()
    except SandboxError as error:
        return _Missing(error)
