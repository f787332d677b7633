"""Background tasks, their owners, and conditions that tasks wait for.

An owner keeps its tasks until they have ended and notices when one dies: the reason is logged and
kept in `failure`, which makes `/health` fail. A service without its workers is not healthy; one
that failed at a single group or rollout is.
"""

import asyncio
import logging
from collections.abc import Collection, Coroutine
from functools import partial
from typing import Any, TypeVar

from prorl_service.errors import ProRLError

log = logging.getLogger(__name__)
T = TypeVar("T")


class TaskOwner:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failure: str | None = None

    def start(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Starts a task that is meant to run until `cancel` or `close`: an earlier end is a
        failure."""
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def run_once(
        self, coroutine: Coroutine[Any, Any, T], *, name: str, of_one: bool = False
    ) -> asyncio.Task[T]:
        """Starts a task that is meant to end; see `adopt`."""
        task = asyncio.create_task(coroutine, name=name)
        self.adopt(task, of_one=of_one)
        return task

    def adopt(self, task: asyncio.Task[Any], *, of_one: bool = False) -> None:
        """Keeps a task until it returns, raises or is cancelled. A `ProRLError` is logged; any
        other error is a failure, unless the task is `of_one` group or rollout: then it is logged.
        """
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended_once, of_one))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task in self._tasks:  # else it was cancelled here
            self._tasks.discard(task)
            self._fail(task, "ended", None if task.cancelled() else task.exception())

    def _ended_once(self, of_one: bool, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ProRLError):
            log.warning("background task %s failed: %s", task.get_name(), error)
        elif isinstance(error, Exception) and of_one:
            log.error("background task %s failed: %.500r", task.get_name(), error)
        elif error is not None:
            self._fail(task, "failed", error)

    def _fail(self, task: asyncio.Task[Any], what: str, error: BaseException | None) -> None:
        is_expected = isinstance(error, ProRLError)
        reason = str(error) if is_expected else repr(error)
        self.failure = f"background task {task.get_name()} {what}: {reason}"
        log.critical("%s", self.failure, exc_info=None if is_expected else error)

    def cancel(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        task.cancel()

    async def drain(self) -> None:
        """Waits until all tasks have ended. For an owner of tasks that are meant to end."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancels all tasks and waits until they have ended."""
        while tasks := list(self._tasks):
            for task in tasks:
                self.cancel(task)
            await asyncio.gather(*tasks, return_exceptions=True)


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels the tasks and waits until they have ended, in whatever way."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Changes:
    """Wakes all waiting tasks at each change, so that they look at their conditions again."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self) -> None:
        """Returns at the next change. A caller that looks at its condition first misses none."""
        await self._next.wait()


async def wait_uncancelled(work: asyncio.Future[T]) -> T:
    """Returns the result of `work`, which is not cancelled with the caller.

    Raises `asyncio.CancelledError` after the end of `work` if the caller was cancelled before,
    however often.
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
        work.exception()  # retrieved: the caller was cancelled
    raise cancelled
