"""Makes missing images: one process at a time for each, within the budget."""

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.images.aio import in_thread
from prorl_service.sandbox.images.leases import ImageLease, Leases
from prorl_service.sandbox.images.locks import Heartbeat, LockFile
from prorl_service.sandbox.images.store import Store, remove_tree

LOCK_POLL_S = (0.05, 1.0)
"""First and longest pause between checks of another process's lock: files send no events."""

WORK_FACTOR = 2
"""Minimum disk of a build, in sizes of its layers: the layers and the image."""


class BuildSource(Protocol):
    @property
    def shown(self) -> str:
        """Name that users know it by."""

    async def make(self, made: Path, *, workspace: Path, timeout_s: float) -> Mapping[str, Any]:
        """Makes the SIF file `made`, with all temporary files in `workspace`.

        Returns the OCI configuration that the file does not have inside.
        """


@dataclass(frozen=True, slots=True)
class WantedImage:
    digest: str
    source: BuildSource | None
    """Source of the image; None if it cannot be made again."""
    size_bytes: int | None = None
    """Size of the compressed layers, if known."""
    digest_now: Callable[[], str] | None = None
    """Function that returns the current digest of a source that may change meanwhile. Blocking."""


class ImageBuilder:
    def __init__(
        self,
        store: Store,
        leases: Leases,
        heartbeat: Heartbeat,
        *,
        budget_bytes: int | None,
        evict_one: Callable[[], Awaitable[bool]],
        build_timeout_s: float,
    ) -> None:
        self._store = store
        self._leases = leases
        self._heartbeat = heartbeat
        self._budget_bytes = budget_bytes
        self._give_up_one = evict_one
        self._build_timeout_s = build_timeout_s

    async def make(self, wanted: WantedImage) -> None:
        """Makes the image unless it exists once the lock is free. The caller must hold a lease."""
        async with self._locked(wanted.digest):
            if await in_thread(self._store.image(wanted.digest).exists):
                return
            if wanted.source is None:
                raise TaskError("the image was removed", hint="make it again: prorl images build")
            if wanted.size_bytes is not None:
                await in_thread(self._check_disk, wanted.source.shown, wanted.size_bytes)
                await self._make_room(wanted.source.shown, wanted.size_bytes)
            async with self._workspace() as workspace:
                made, oci = await self._build(wanted.source, workspace)
                if wanted.digest_now and await in_thread(wanted.digest_now) != wanted.digest:
                    raise SandboxError(f"{wanted.source.shown} was changed while it was read")
                await self._publish(wanted.digest, made, wanted.source.shown, oci)

    async def make_local(self, source: BuildSource | Path) -> ImageLease:
        """Builds a source without a digest, or copies a SIF file; the result's digest names it."""
        shown = str(source) if isinstance(source, Path) else source.shown
        async with self._workspace() as workspace:
            oci: Mapping[str, Any] = {}
            if isinstance(source, Path):
                made = Path(await in_thread(shutil.copyfile, source, workspace / "image.sif"))
            else:
                made, oci = await self._build(source, workspace)
            digest = await in_thread(_digest_of_file, made)
            lease = await self._leases.lease(digest)
            try:
                async with self._locked(digest):
                    if not await in_thread(self._store.image(digest).exists):
                        await self._publish(digest, made, shown, oci)
            except BaseException:
                await lease.release()
                raise
        return lease

    async def _build(self, source: BuildSource, workspace: Path) -> tuple[Path, Mapping[str, Any]]:
        made = workspace / "image.sif"
        oci = await source.make(made, workspace=workspace, timeout_s=self._build_timeout_s)
        return made, oci

    async def _publish(self, digest: str, made: Path, shown: str, oci: Mapping[str, Any]) -> None:
        size = await in_thread(lambda: made.stat().st_size)
        await self._make_room(shown, size)
        await in_thread(self._store.publish, digest, made, shown, oci)

    # --- room -----------------------------------------------------------------------------------

    def _check_disk(self, shown: str, size_bytes: int) -> None:
        free = shutil.disk_usage(self._store.root).free
        if free < WORK_FACTOR * size_bytes:
            raise SandboxError(
                f"{shown} needs {mb(WORK_FACTOR * size_bytes)} of disk to be made; "
                f"{self._store.root} has {mb(free)}",
                hint="free space, or set PRORL_CACHE to another place",
            )

    async def _make_room(self, shown: str, size_bytes: int) -> None:
        """Evicts until it fits the budget. Raises `SandboxError` if images in use prevent that."""
        if self._budget_bytes is None:
            return
        has = f"it has {mb(size_bytes)}, the budget is {mb(self._budget_bytes)}"
        if size_bytes > self._budget_bytes:
            message = f"{shown} is larger than the budget: {has}"
            raise SandboxError(message, hint="raise the budget", retryable=False)
        while not await in_thread(self._evict_others, self._budget_bytes - size_bytes):
            if not await self._give_up_one():
                raise SandboxError(
                    f"no room for {shown}: {has}, and too much of it is in use or was made here",
                    hint="raise the budget, or use fewer images at once; see `prorl images list`",
                )

    def _evict_others(self, max_bytes: int) -> bool:
        """Evicts least recently used images. Returns whether at most `max_bytes` are left."""
        entries = self._store.entries()
        excess = sum(entry.size_bytes for entry in entries) - max_bytes
        for entry in entries:
            if excess > 0 and not entry.is_local and self._store.evict(entry.digest):
                excess -= entry.size_bytes
        return excess <= 0

    # --- locks ---------------------------------------------------------------------------------

    def _locked(self, digest: str) -> AbstractAsyncContextManager[None]:
        lock = self._store.lock(digest)
        return self._heartbeat.holding(lock, self._wait_for(lock))

    async def _wait_for(self, lock: LockFile) -> None:
        pause_s, longest_s = LOCK_POLL_S
        try:
            async with asyncio.timeout(self._build_timeout_s):
                while not await in_thread(lock.take_over):
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, longest_s)
        except TimeoutError:
            raise SandboxError(
                f"another process has been making this image for {self._build_timeout_s:g} s",
                hint=f"its host and process id are in {lock.path}",
            ) from None

    @asynccontextmanager
    async def _workspace(self) -> AsyncIterator[Path]:
        path, lock = self._store.workspace()
        async with self._heartbeat.holding(lock, in_thread(lock.take)):
            try:
                await in_thread(path.mkdir, 0o700)
                yield path
            finally:
                await in_thread(remove_tree, path)


def mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
