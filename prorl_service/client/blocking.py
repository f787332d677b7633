"""Coroutines for callers that block: they run in a thread with an event loop."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")


class Blocking:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="prorl client", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns the result; cancels the work if the caller is interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def each(self, items: AsyncGenerator[Result, None]) -> Iterator[Result]:
        """Yields the items; closes the generator in the end."""
        step: asyncio.Task[Any] | None = None

        async def next_item() -> list[Result]:
            nonlocal step
            step = asyncio.current_task()
            try:
                return [await anext(items)]
            except StopAsyncIteration:
                return []

        async def end() -> None:
            if step is not None:  # an interrupted one still holds the generator
                await asyncio.wait([step])
            await items.aclose()

        try:
            while found := self.call(next_item()):
                yield found[0]
        finally:
            self.call(end())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
