"""Owner of long-lived tasks: starts them, cancels them, and notices when one dies.

A background task is meant to run until `close`. When one ends earlier its error is logged and kept
in `failure`, which the service's health answers with: a service without its workers is not healthy.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from prorl_service.errors import ProRLError

log = logging.getLogger(__name__)
T = TypeVar("T")


class TaskOwner:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: str | None = None

    def start(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task not in self._tasks:
            return  # it was cancelled here
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        reason = str(error) if isinstance(error, ProRLError) else repr(error)
        self.failure = f"background task {task.get_name()} ended: {reason}"
        log.critical(self.failure, exc_info=None if isinstance(error, ProRLError) else error)

    def cancel(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            self.cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_uncancelled(work: asyncio.Future[T]) -> T:
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
