"""Kinds whose sandboxes are forks of a zygote: all that a kind adds is its container.

A kind says how its container is launched, and its class of sandboxes what an order has.
"""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack

from prorl_service.errors import TaskError
from prorl_service.sandbox.base import SandboxLimits, SandboxProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.host.zygotes import Container, Zygotes


class ZygoteProvider(SandboxProvider):
    sandbox_class: type[RemoteSandbox]

    def __init__(self, *, user: int | None) -> None:
        """`user` runs the containers; None: the service's own."""
        self._zygotes = Zygotes(self._launch, user=user)

    @abstractmethod
    async def _launch(self, key: str, resources: AsyncExitStack) -> Container:
        """Says how a container is started. `resources` gets what must last as long."""

    def _key(self, image: str | None, user: str | None = None) -> str:
        """Returns what names the container of an image. Raises `TaskError` for what this kind does
        not provide."""
        if image is not None:
            raise TaskError(
                f"{self.kind} runs the host's own programs, not the image {image!r}",
                hint="submit the task without an image",
            )
        if user is not None:
            raise TaskError(
                f"the user {user!r} is one of an image, and the task has none",
                hint="name an image in the task, or leave the user out",
            )
        return ""

    def create(
        self, *, image: str | None, limits: SandboxLimits, user: str | None = None
    ) -> RemoteSandbox:
        return self.sandbox_class(self._zygotes, self._key(image, user), limits, user)

    def check(self, image: str | None) -> None:
        self._key(image)

    def prewarm(self, images: Sequence[str | None]) -> None:
        self._zygotes.prewarm(map(self._key, dict.fromkeys(images)))

    async def evict_image(self, wait_s: float) -> bool:
        return await self._zygotes.evict_one(wait_s)

    async def close(self) -> None:
        await self._zygotes.close()
