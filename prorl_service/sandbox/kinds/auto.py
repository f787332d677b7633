"""The strongest kinds that work here: one with images for tasks with an image, another for others.

If none of a sort works, its tasks are refused with the reasons. Never `process`.
"""

import logging
from collections.abc import Callable, Sequence

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import Sandbox, SandboxLimits, SandboxProvider
from prorl_service.sandbox.images.image_config import ImageConfig

log = logging.getLogger(__name__)

Makers = Sequence[Callable[[], SandboxProvider]]
"""Functions that make a provider or raise `SandboxError`, the preferred one first."""


def first_working(makers: Makers) -> SandboxProvider:
    """Returns the provider of the first kind that works. Raises `SandboxError` with all reasons."""
    reasons = []
    for make in makers:
        try:
            return make()
        except SandboxError as error:
            reasons.append(error)
    raise _joined("", reasons)


def _joined(prefix: str, reasons: Sequence[SandboxError]) -> SandboxError:
    return SandboxError(
        prefix + "; ".join(one.message for one in reasons),
        hint="; ".join(one.hint for one in reasons),
        retryable=False,
    )


class AutoProvider(SandboxProvider):
    def __init__(self, with_image: Makers, without_image: Makers) -> None:
        """Tries the kinds. Raises `SandboxError` with all reasons if none works."""
        self._with_image = _working(with_image)
        self._without_image = _working(without_image)
        both = (self._with_image, self._without_image)
        missing = [one for one in both if isinstance(one, _Missing)]
        if len(missing) == 2:
            raise _joined("no sandbox works here: ", [one.why for one in missing])
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
    """Placeholder for kinds that do not work here."""

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


def _working(makers: Makers) -> SandboxProvider:
    try:
        return first_working(makers)
    except SandboxError as error:
        return _Missing(error)
