"""Small asyncio helpers of the image cache: threads, shared work, errors of the disk."""

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from prorl_service.errors import SandboxError
from prorl_service.utils.tasks import wait_uncancelled

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `asyncio.to_thread`, but a cancelled caller leaves only when the function has ended."""
    return await wait_uncancelled(asyncio.create_task(asyncio.to_thread(function, *args, **kwargs)))


@dataclass(slots=True)
class _Flight:
    task: asyncio.Future[None]
    waiting: int = 0


class SingleFlight:
    """Does work that several callers want once; cancels it when the last caller has left."""

    def __init__(self) -> None:
        self._flights: dict[str, _Flight] = {}

    async def run(self, key: str, make: Callable[[], Awaitable[None]]) -> None:
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.ensure_future(make()))
        flight.waiting += 1
        try:
            await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if flight.waiting == 0:
                del self._flights[key]
                flight.task.cancel()
                await asyncio.wait([flight.task])
                if not flight.task.cancelled():
                    flight.task.exception()  # retrieved: the callers have left


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Turns an `OSError` of the cache's disk into a `SandboxError` that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise SandboxError(
            f"the image cache {root}: {error.strerror}: {error.filename or root}",
            hint="free space, or set PRORL_CACHE to another place"
            if full
            else "set PRORL_CACHE to a directory that you can write to",
            retryable=full or error.errno in (errno.EIO, errno.ESTALE, errno.ETIMEDOUT),
        ) from error
