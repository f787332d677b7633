"""Leases, which keep an image from being removed. One file per image and process."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from prorl_service.sandbox.images.aio import in_thread
from prorl_service.sandbox.images.locks import Heartbeat
from prorl_service.sandbox.images.store import Store


class ImageLease:
    """The use of an image, from `ImageCache.get` until `release`, which is idempotent."""

    def __init__(
        self,
        path: Path,
        digest: str | None = None,
        release: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.path = path
        """The SIF file, or the root file system where the reference was a directory."""
        self.digest = digest
        """Digest of the image; None for a file or directory that is used as is."""
        self._release = release

    async def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            await release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


@dataclass(slots=True)
class _Held:
    lock: AsyncExitStack
    leases: int = 0


class Leases:
    def __init__(self, store: Store, heartbeat: Heartbeat) -> None:
        self._store = store
        self._heartbeat = heartbeat
        self._held: dict[str, _Held] = {}
        self._changing = asyncio.Lock()

    async def lease(self, digest: str) -> ImageLease:
        """Leases a digest. The caller checks afterwards whether the image exists."""
        async with self._changing:
            held = self._held.get(digest)
            if held is None:
                held = self._held[digest] = _Held(await self._take(digest))
            held.leases += 1
        return ImageLease(self._store.image(digest), digest, lambda: self._give_back(digest))

    async def _take(self, digest: str) -> AsyncExitStack:
        lock = self._store.lease(digest)
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._heartbeat.holding(lock, in_thread(lock.take)))
            await in_thread(self._store.touch, digest)
            held.push_async_callback(in_thread, self._store.touch, digest)
            return held.pop_all()

    async def _give_back(self, digest: str) -> None:
        async with self._changing:
            held = self._held[digest]
            held.leases -= 1
            if held.leases == 0:
                del self._held[digest]
                await held.lock.aclose()
