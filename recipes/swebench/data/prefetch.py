"""Fetches the images of instances ahead of their use, after a look at the disk.

The image cache does the work (`prorl_service.sandbox.images`): what is there is not fetched again,
so that an interrupted run goes on where it was. Here are the estimate, and the waits that limits of
registries ask for.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from prorl_service.errors import ProRLError
from prorl_service.sandbox.images import ImageCache, Pulled, parse

IMAGE_MB = 1000.0
"""An estimate from published sizes, 0.3 to 1 GB for SWE-bench's: the 500 of Verified are over
100 GiB compressed with layers shared, which SIF files do not share."""
WORK_FACTOR = 2
"""What the making of an image takes besides, in sizes of the image: layers and unpacked tree."""

WAITS_S = (60.0, 300.0, 900.0, 1800.0, *[3600.0] * 6)
"""After rounds in which nothing could be fetched. Anonymous limits are counted over six hours."""

Pause = Callable[[float], Awaitable[object]]


def name_of(reference: str) -> str:
    """As the cache knows it. Raises `TaskError` for what is no name of an image."""
    return str(parse(reference))


async def missing(cache: ImageCache, references: Iterable[str]) -> list[str]:
    """Those that the cache does not have by that name."""
    names = {name for entry in await cache.entries() for name in entry.names}
    return [reference for reference in references if name_of(reference) not in names]


def check_disk(root: Path, images: int, image_mb: float, parallel: int) -> str:
    """What so many more images need. Raises `ProRLError` where they are not likely to fit."""
    there = next(path for path in (root, *root.parents) if path.exists())
    free_gb = shutil.disk_usage(there).free / 1e9
    needed_gb = (images + WORK_FACTOR * min(parallel, images)) * image_mb / 1e3
    origin = "an estimate from published sizes" if image_mb == IMAGE_MB else "as given"
    estimate = (
        f"{images} images need about {needed_gb:.0f} GB ({image_mb:g} MB each, {origin}, and work"
        f" space); {there} has {free_gb:.0f} GB"
    )
    if needed_gb > free_gb:
        raise ProRLError(
            estimate,
            hint="free space, set PRORL_CACHE to a larger disk, take fewer with --limit, give a"
            " better estimate with --image-mb, or go without with --no-images",
        )
    return estimate


async def fetch(
    cache: ImageCache,
    references: Sequence[str],
    *,
    parallel: int,
    on_progress: Callable[[Pulled], None],
    pause: Pause = asyncio.sleep,
) -> dict[str, ProRLError]:
    """What could not be had, by reference. Tries again what a retry can help, after `WAITS_S`."""
    failed: dict[str, ProRLError] = {}
    pending, waits = list(references), iter(WAITS_S)
    while pending:
        pulled = await cache.prefetch(pending, parallel=parallel, on_progress=on_progress)
        errors = {one.reference: one.error for one in pulled if one.error is not None}
        failed |= {name: error for name, error in errors.items() if not error.retryable}
        retry = [name for name, error in errors.items() if error.retryable]
        if len(retry) < len(pending):
            waits = iter(WAITS_S)
        wait_s = next(waits, None)
        if retry and wait_s is None:
            return failed | {name: errors[name] for name in retry}
        pending = retry
        if retry and wait_s is not None:
            await pause(wait_s)
    return failed
