"""Stores of images: what callers may ask of one, whatever its images are.

`cache` keeps SIF files for Apptainer, `engine_images` uses the store of Podman or Docker. The same
references name the same images in both.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from prorl_service.errors import ProRLError, TaskError
from prorl_service.sandbox.images.apptainer_build import ApptainerSource
from prorl_service.sandbox.images.image_config import ImageConfig
from prorl_service.sandbox.images.references import parse
from prorl_service.sandbox.images.store import CachedImage


@dataclass(frozen=True, slots=True)
class Pulled:
    """Progress of one reference of a `prefetch`."""

    reference: str
    state: Literal["waiting", "working", "done", "failed"] = "waiting"
    size_bytes: int | None = None
    """Size of the image when done; None for one that is used as is."""
    seconds: float = 0.0
    error: ProRLError | None = None


async def nothing_to_give_up() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOptions:
    """The user's choices, for any store."""

    root: Path | None = None
    """Directory of the store's own files; None: `images` in the service's cache."""
    budget_bytes: int | None = None
    """Maximum size of finished images; None: no limit."""
    evict_one: Callable[[], Awaitable[bool]] = nothing_to_give_up
    """Function that gets an image in use released, or returns False."""
    bases: tuple[str, ...] = ()
    """Pairs `IMAGE=REFERENCE`: what stands in for images that tasks name."""
    build_network: bool = True
    """True if commands of Dockerfiles have the host's network."""


class ImageStore(ABC):
    @abstractmethod
    async def config(self, reference: str) -> ImageConfig:
        """Returns where an image's commands start, as whom and with which variables, as far as that
        is known; gets the image if it is missing. Raises `TaskError`, `SandboxError`."""

    @abstractmethod
    async def build(self, name: str, source: ApptainerSource | str) -> CachedImage:
        """Makes `local:name` of a definition, or of what a reference stands for."""

    @abstractmethod
    async def entries(self) -> list[CachedImage]:
        """Returns all images, least recently used first."""

    @abstractmethod
    async def prune(
        self,
        *,
        budget_bytes: int | None = None,
        unused_s: float | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> list[CachedImage]:
        """Removes unused images, and what crashed processes left. Returns the removed images.

        Removes those not used for `unused_s`, or `everything`; then the least recently used that
        were not made here, down to `budget_bytes`. `dry_run` only returns what it would remove.
        """

    @abstractmethod
    async def _pull(self, reference: str, leases: AsyncExitStack) -> int | None:
        """Gets an image, with its tag as it is now, and leases it. Returns its size; None for one
        that is used as is. Raises `ProRLError`."""

    async def prefetch(
        self,
        references: Iterable[str],
        *,
        parallel: int = 4,
        on_progress: Callable[[Pulled], None] = lambda _: None,
    ) -> list[Pulled]:
        """Gets all images, with tags as they are now; a failure does not stop the others.

        The images stay leased until the last one is done: together they must fit the budget.
        """
        slots = asyncio.Semaphore(parallel)

        async def pull(reference: str) -> Pulled:
            async with slots:
                on_progress(Pulled(reference, "working"))
                pulled = await self._timed_pull(reference, leases)
                on_progress(pulled)
                return pulled

        unique = list(dict.fromkeys(references))
        for reference in unique:
            on_progress(Pulled(reference))
        async with AsyncExitStack() as leases, asyncio.TaskGroup() as group:
            pulls = [group.create_task(pull(reference)) for reference in unique]
        return [done.result() for done in pulls]

    async def _timed_pull(self, reference: str, leases: AsyncExitStack) -> Pulled:
        start = time.monotonic()
        pulled = Pulled(reference, "done")
        try:
            pulled = replace(pulled, size_bytes=await self._pull(reference, leases))
        except ProRLError as error:
            pulled = replace(pulled, state="failed", error=error)
        return replace(pulled, seconds=time.monotonic() - start)


def substitutes_of(pairs: Iterable[str]) -> dict[str, str]:
    """Reads `IMAGE=REFERENCE` pairs. Raises `TaskError` for what is none."""
    found = {}
    for pair in pairs:
        image, equals, reference = pair.partition("=")
        if not equals:
            raise TaskError(
                f"not a pair of images: {pair!r}", hint="write it as debian:bookworm=local:NAME"
            )
        found[str(parse(image))] = str(parse(reference))
    return found


def to_prune(
    entries: list[CachedImage], budget_bytes: int | None, unused_s: float | None, everything: bool
) -> list[CachedImage]:
    free = [entry for entry in entries if not entry.in_use]
    oldest = time.time() - unused_s if unused_s is not None else 0.0
    chosen = [entry for entry in free if everything or entry.used_at < oldest]
    if budget_bytes is not None:
        excess = sum(entry.size_bytes for entry in entries) - budget_bytes
        excess -= sum(entry.size_bytes for entry in chosen)
        for entry in free:
            if excess > 0 and entry not in chosen and not entry.is_local:
                chosen.append(entry)
                excess -= entry.size_bytes
    return chosen
