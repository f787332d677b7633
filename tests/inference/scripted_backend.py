"""A `Backend` whose engine gives scripted answers, over real HTTP."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from prorl_service.inference.backend import Backend
from prorl_service.inference.connections import Connections
from prorl_service.testing.loopback import Handler, Loopback

MODELS = {"data": [{"id": "m", "root": "/m", "max_model_len": 64, "owned_by": "vllm"}]}


class Scripted(Loopback):
    def __init__(self, routes: Mapping[str, Handler]) -> None:
        self._routes = routes

    def routes(self) -> Mapping[str, Handler]:
        return self._routes


@asynccontextmanager
async def backend_to(engine: Loopback, kind: str = "auto") -> AsyncIterator[Backend]:
    async with engine, aclosing(Connections()) as connections:
        yield Backend(engine.url, connections, kind=kind)


@asynccontextmanager
async def backend_of(routes: Mapping[str, Handler], kind: str = "auto") -> AsyncIterator[Backend]:
    """Yields a backend whose engine answers each path by a function, whatever the method."""
    async with backend_to(Scripted(routes), kind) as backend:
        yield backend


def answers(body: Any, status: int = 200) -> Handler:
    async def handler(_: Request) -> Response:
        return Response(body, status) if isinstance(body, str) else JSONResponse(body, status)

    return handler


async def hang(_: Request) -> Response:
    """Hangs until the caller goes away."""
    await asyncio.Event().wait()
    raise AssertionError
