"""A resources server whose answers a test chooses, over real HTTP: it can fail in every way."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from aiohttp import web

from prorl_service import local

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StubGym:
    """Gives each session a cookie, and answers each route with its handler in `routes`, by default
    `{}`. `requests` are the paths, sessions and bodies seen. The port stays the same when it is
    stopped and started again."""

    def __init__(self) -> None:
        self.routes: dict[str, Handler] = {}
        self.requests: list[tuple[str, str | None, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.port = local.free_port()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def of(self, path: str) -> list[tuple[str | None, Any]]:
        """Returns sessions and bodies of the requests to one route."""
        return [(session, body) for one, session, body in self.requests if one == path]

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        self.requests.append((path, request.cookies.get("session"), await request.json()))
        self.headers.append(request.headers)
        handler = self.routes.get(path)
        response = web.json_response({}) if handler is None else await handler(request)
        if path == "seed_session" and not response.prepared:
            response.set_cookie("session", f"s{len(self.of(path))}", path="/", httponly=True)
        return response


def gives(status: int = 200, text: str | None = None, **fields: Any) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        if text is not None:
            return web.Response(status=status, text=text)
        return web.json_response(fields, status=status)

    return handle


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("cancelled before")


async def drops(request: web.Request) -> web.StreamResponse:
    """Closes the connection in the place of an answer, as a killed process does."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()
