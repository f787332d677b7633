"""A server on a loopback port, on the event loop of its caller, whose answers a class makes."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from prorl_service.net.asgi_server import AsgiServer

START_TIMEOUT_S = 60.0

Handler = Callable[[Request], Awaitable[Response]]


class Loopback(ABC):
    """Serves while entered as an async context. A handler whose caller goes away is cancelled."""

    url = ""
    host = "127.0.0.1"
    port = 0

    @abstractmethod
    def routes(self) -> Mapping[str, Handler]:
        """Returns handlers by path, for any method; a subclass may add others."""

    async def respond(self, request: Request) -> Response:
        """Answers any request; a subclass may look at all of them here."""
        handler = self.routes().get(request.url.path)
        return Response(status_code=404) if handler is None else await handler(request)

    def hang_up(self, request: Request) -> None:
        """Aborts the request's connection."""
        self._server.hang_up(request.scope["client"])

    async def __aenter__(self) -> Self:
        self._server = AsgiServer(self._answer)
        self.url = f"http://{self.host}:{await self._server.start(self.host, self.port)}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            await request.body()  # handlers read it again
        except ClientDisconnect:
            return

        async def respond() -> None:
            await (await self.respond(request))(scope, receive, send)

        work = asyncio.ensure_future(respond())
        gone = asyncio.ensure_future(receive())  # nothing else comes after the body
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.wait([work, gone])

    @contextmanager
    def in_thread(self) -> Iterator[Self]:
        """Runs it on an event loop in a thread of its own, for callers without a loop."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.__aenter__(), loop).result(START_TIMEOUT_S)
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self.__aexit__(), loop).result(START_TIMEOUT_S)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
