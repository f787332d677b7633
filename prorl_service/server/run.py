"""Runs the application until a signal asks for its end, and lets it drain first.

The first SIGTERM or SIGINT: nothing more is begun, and what runs may come to its end. The second
ends that at once.
"""

import asyncio
import gc
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from prorl_service import __version__
from prorl_service.front.discovery import Announcement
from prorl_service.net.listen import listener
from prorl_service.schemas import RolloutState
from prorl_service.server.connections import Bounds, bounded
from prorl_service.server.service import Service
from prorl_service.utils import descriptors

log = logging.getLogger(__name__)

AT_WORK = (RolloutState.RUNNING, RolloutState.EVALUATING)
GARBAGE_OBJECTS = 20_000
"""New ones until the youngest are looked through."""
GRACE_S = 5
"""How long open connections may delay a shutdown, once all waits have been ended."""


class Server(uvicorn.Server):
    """Enters the application's parts itself: uvicorn would log what they raise as a traceback."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        drain: Callable[[], Awaitable[None]],
        announcement: Announcement | None,
    ) -> None:
        super().__init__(config)
        self._app = app
        self._drain = drain
        self._announcement = announcement
        self._draining: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with AsyncExitStack() as self._parts:
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._parts.enter_async_context(self._app.router.lifespan_context(self._app))
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        if self._announcement is not None:
            self._announcement.write(port)
        log.info("prorl %s at http://%s:%d, its API page at /docs", __version__, host, port)
        log.info(self._app.state.service.summary())
        # What lives by now lives for ever, and cycles are rare: a tenth of the CPU time is spared.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GARBAGE_OBJECTS, *gc.get_threshold()[1:])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is not None:
            self._draining.get_loop().call_soon_threadsafe(self._draining.cancel)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._announcement is not None:
            self._announcement.remove()
        self._draining = asyncio.ensure_future(self._drain())
        await asyncio.wait([self._draining])
        await super().shutdown(sockets)
        await self._parts.aclose()  # `serve` ends with the signal that ended it, raised again


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server is reached, and how it stops."""

    host: str
    port: int
    drain_s: float
    max_connections: int
    announcement: Announcement | None


def run(app: FastAPI, options: ServerOptions) -> None:
    """Returns when it has ended. Raises `ProRLError` if it could not start."""
    bounds = Bounds(connections=min(options.max_connections, descriptors.raise_limit() // 2))
    with listener(options.host, options.port) as bound:
        config = http_config(app, bounds, lifespan="off", log_config=None, log_level="warning")
        drain = partial(_drain, app, options.drain_s)
        Server(config, app, drain, options.announcement).run(sockets=[bound])


async def _drain(app: FastAPI, budget_s: float) -> None:
    service: Service = app.state.service
    pipeline = service.pipeline
    if at_work := sum(pipeline.count_by_state().get(state, 0) for state in AT_WORK):
        text = "%d rollouts have %g s to end; a second signal does not wait for them"
        log.info(text, at_work, budget_s)
    try:
        await pipeline.drain(budget_s)
    finally:
        service.samplers.end_waits()


def http_config(app: FastAPI, bounds: Bounds, **options: Any) -> uvicorn.Config:
    """`options`: as of `uvicorn.Config`."""
    return uvicorn.Config(
        app,
        http=bounded(bounds),
        ws="none",  # no route has WebSockets; with them, connections would leave our bounds
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        **options,
    )
