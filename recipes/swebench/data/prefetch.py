"""Fetches the images of instances ahead of their use, after a check of the disk space.

The image cache does the work (`prorl_service.sandbox.images`): it does not fetch an image twice, so
an interrupted run continues where it was. This module adds the estimate, and the waits that the
limits of registries require.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from prorl_service.errors import ProRLError
from prorl_service.sandbox.images import ImageCache, Pulled, parse

IMAGE_MB = 1000.0
"""Size of an image, estimated from published ones, 0.3 to 1 GB for SWE-bench's: the 500 of Verified
are over 100 GiB compressed with layers shared, which SIF files do not share."""
WORK_FACTOR = 2
"""Extra space while an image is made, in sizes of the image: layers and unpacked tree."""

WAITS_S = (60.0, 300.0, 900.0, 1800.0, *[3600.0] * 6)
"""Seconds to wait after rounds that fetched nothing. Anonymous limits count over six hours."""

Pause = Callable[[float], Awaitable[object]]


def name_of(reference: str) -> str:
    """Returns the cache's name of an image. Raises `TaskError` for an invalid name."""
    return str(parse(reference))


async def missing(cache: ImageCache, references: Iterable[str]) -> list[str]:
    """Returns the references that the cache does not have by that name."""
    names = {name for entry in await cache.entries() for name in entry.names}
    return [reference for reference in references if name_of(reference) not in names]


def check_disk(root: Path, images: int, image_mb: float, parallel: int) -> str:
    """Says what so many more images need. Raises `ProRLError` if they are unlikely to fit."""
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
            " better estimate with --image-mb, or fetch none with --no-images",
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
    """Returns errors by reference. Retries images that a retry can help, after `WAITS_S`."""
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
