"""An event loop in its own thread, for trainers that block theirs, and blocking work for it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class BackgroundLoop:
    """It runs until `stop`, or until the process ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="prorl", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns what `work` returns. Not for the loop's own thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def stop(self) -> None:
        """Cancels what still runs there."""
        self.do(_cancel_others())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def in_thread(work: Callable[[], Result]) -> "asyncio.Future[Result]":
    """Runs `work` in a thread that does not outlive the process, unlike a pool's."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="prorl tinker", daemon=True).start()
    return asyncio.wrap_future(future)
