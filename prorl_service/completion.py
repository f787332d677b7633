"""Waiting for work that must not be left half done when whoever waits for it is cancelled.

`asyncio.shield` lets the work go on, too, but its caller leaves at once. Here the caller stays.
"""

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def completed(work: asyncio.Future[T]) -> T:
    """The result of `work`, which is not cancelled with the caller, however often that happens.

    Raises `asyncio.CancelledError` after the end of `work`, if the caller was cancelled before.
    """
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return work.result()
    if not work.cancelled():
        work.exception()  # seen: whoever wanted to know has left
    raise cancelled
