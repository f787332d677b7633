"""The asynchronous client without an event loop, for callers that block.

Its coroutines wait for their transport, for pieces of a body and for the next try, and for nothing
else. Here each of these blocks before it is awaited, so a coroutine runs to its end in one step:
there is no thread, no loop and no task to fork, interrupt or end. So it also works where a loop
runs, as in Jupyter.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Iterator
from typing import TypeVar

import httpx

from prorl_service.client.async_http import AsyncRolloutClient
from prorl_service.client.calls import Piece, transport_options

Result = TypeVar("Result")


def finished(work: Awaitable[Result]) -> Result:
    """Returns what `work` returns, or raises what it raises. It must wait for nothing."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise RuntimeError(f"{work!r} waits for an event loop")


def each(items: AsyncIterator[Result]) -> Iterator[Result]:
    """Yields the items; closes a generator in the end."""
    try:
        while True:
            try:
                item = finished(anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        if isinstance(items, AsyncGenerator):
            finished(items.aclose())


async def _done() -> None: ...


class UnawaitedClient(AsyncRolloutClient):
    """Client whose coroutines are for `finished`, and whose generators are for `each`."""

    def _transport(self) -> httpx.AsyncBaseTransport:
        return _BlockingTransport()

    def _sleep(self, seconds: float) -> Awaitable[None]:
        time.sleep(seconds)
        return _done()

    async def _pieces(self, content: Iterable[Piece]) -> AsyncIterator[Piece]:
        """Yields pieces that are made in the caller's thread, which may have a device."""
        for piece in content:
            yield piece


class _BlockingTransport(httpx.AsyncBaseTransport):
    def __init__(self) -> None:
        self._transport = httpx.HTTPTransport(**transport_options())

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not isinstance(request.stream, httpx.SyncByteStream):
            request.stream = _RequestBody(request.stream)
        response = self._transport.handle_request(request)
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _ResponseBody(response.stream)
        return response

    async def aclose(self) -> None:
        self._transport.close()


class _RequestBody(httpx.SyncByteStream):
    def __init__(self, parts: httpx.AsyncByteStream) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        return each(aiter(self._parts))


class _ResponseBody(httpx.AsyncByteStream):
    def __init__(self, parts: httpx.SyncByteStream) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part

    async def aclose(self) -> None:
        self._parts.close()
