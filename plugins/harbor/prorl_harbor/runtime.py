"""The sandboxes of this process: one container for each image, whatever trials ask for it.

They belong to the event loop, like Harbor's trials. Harbor's command closes them at its end; in
another program they end with the loop, or earlier by `close`.
"""

import asyncio
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from harbor.utils.async_cleanup import register_async_cleanup

from prorl_harbor.image import ImageConfig, config_of
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.images import ImageCache
from prorl_service.sandbox.kinds.apptainer import ApptainerProvider
from prorl_service.utils import files

ROOM_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Sandboxes:
    provider: SandboxProvider
    images: ImageCache
    _configs: dict[str, ImageConfig]

    async def config(self, reference: str) -> ImageConfig:
        """Returns the configuration of an image, which is fetched or built if it is missing.

        Raises `TaskError` and `SandboxError`.
        """
        if reference not in self._configs:
            async with self.images.image(reference) as path:
                self._configs[reference] = await asyncio.to_thread(config_of, path)
        return self._configs[reference]


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
    images = ImageCache()
    provider = await asyncio.to_thread(_provider, images)
    return Sandboxes(provider, images, {})


def _provider(images: ImageCache) -> SandboxProvider:
    files.remove_stale_tempdirs()
    return ApptainerProvider(images.image)


def check() -> None:
    """Raises `SandboxError` with the reason if sandboxes do not work here."""
    _provider(ImageCache())


async def close() -> None:
    """Ends the containers of this event loop. All its environments must have been stopped."""
    opening = _of_loop.pop(asyncio.get_running_loop(), None)
    if opening is None:
        return
    await asyncio.wait([opening])
    if opening.exception() is None:
        await opening.result().provider.close()
