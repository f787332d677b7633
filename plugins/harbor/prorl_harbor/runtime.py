"""The sandboxes of this process: one container for each image, whatever trials ask for it.

They belong to the event loop, like Harbor's trials. Harbor's command closes them at its end; in
another program they end with the loop, or earlier by `close`.
"""

import asyncio
from weakref import WeakKeyDictionary

from harbor.utils.async_cleanup import register_async_cleanup

from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.images import ImageCache
from prorl_service.sandbox.images.image_config import ImageConfig
from prorl_service.sandbox.kinds.apptainer import ApptainerProvider
from prorl_service.utils import files


class Sandboxes:
    def __init__(self, provider: SandboxProvider) -> None:
        self.provider = provider
        self._configs: dict[str, ImageConfig] = {}

    async def config(self, image: str) -> ImageConfig:
        """Returns the configuration of an image, which is fetched or built if it is missing.

        Raises `TaskError` and `SandboxError`.
        """
        if image not in self._configs:
            self._configs[image] = await self.provider.image_config(image)
        return self._configs[image]


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Sandboxes]] = (
    WeakKeyDictionary()
)


async def sandboxes() -> Sandboxes:
    """Returns those of this event loop. Raises `SandboxError` if they do not work here."""
    loop = asyncio.get_running_loop()
    opening = _of_loop.get(loop)
    if opening is None or (opening.done() and opening.exception() is not None):
        opening = _of_loop[loop] = loop.create_task(_open())
        register_async_cleanup(close)
    return await asyncio.shield(opening)


async def _open() -> Sandboxes:
    return Sandboxes(await asyncio.to_thread(_provider))


def _provider() -> SandboxProvider:
    files.remove_stale_tempdirs()
    images = ImageCache()
    return ApptainerProvider(images.image, configs=images.config)


def check() -> None:
    """Raises `SandboxError` with the reason if sandboxes do not work here."""
    _provider()


async def close() -> None:
    """Ends the containers of this event loop. All its environments must have been stopped."""
    opening = _of_loop.pop(asyncio.get_running_loop(), None)
    if opening is None:
        return
    await asyncio.wait([opening])
    if opening.exception() is None:
        await opening.result().provider.close()
