"""A `Backend` whose engine gives scripted answers, over real HTTP."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from aiohttp import web

from prorl_service.inference.backend import Backend
from prorl_service.inference.connections import Connections

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MODELS = {"data": [{"id": "m", "root": "/m", "max_model_len": 64, "owned_by": "vllm"}]}


@asynccontextmanager
async def backend_of(routes: dict[str, Handler]) -> AsyncIterator[Backend]:
    """Yields a backend whose engine answers each path by a function, whatever the method."""
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_route("*", path, handler)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aclosing(Connections()) as connections:
            yield Backend(f"http://127.0.0.1:{runner.addresses[0][1]}/", connections)
    finally:
        await runner.cleanup()


def answers(body: Any, status: int = 200) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        if isinstance(body, str):
            return web.Response(text=body, status=status)
        return web.json_response(body, status=status)

    return handler


async def hang(_: web.Request) -> web.StreamResponse:
    """Hangs until the caller goes away."""
    await asyncio.Event().wait()
    raise AssertionError
