"""Runs the application until a signal asks for its end, and lets it drain first.

The first SIGTERM or SIGINT: nothing more is begun, and what runs may come to its end. The second
ends that at once.
"""

import asyncio
import gc
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from prorl_service.announcement import Announcement
from prorl_service.errors import ProRLError
from prorl_service.server.heads import BoundedHeads

GARBAGE_OBJECTS = 20_000
"""New ones until the youngest are looked through."""
GRACE_S = 5
"""How long open connections may delay a shutdown, once all waits have been ended."""


class Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        drain: Callable[[], Awaitable[None]],
        announcement: Announcement | None,
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._announcement = announcement
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._announcement is not None:
            self._announcement.write(self.servers[0].sockets[0].getsockname()[1])
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


def run(
    app: FastAPI, *, host: str, port: int, drain_s: float, announcement: Announcement | None
) -> None:
    """Returns when it has ended. Raises `ProRLError` if it could not start."""
    _raise_open_files_limit()
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=BoundedHeads,
        log_config=None,
        log_level="info",
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = Server(config, lambda: app.state.service.pipeline.drain(drain_s), announcement)
    with suppress(SystemExit):  # uvicorn's, when it could not start
        server.run()
    if not server.started:
        raise getattr(app.state, "problem", None) or ProRLError("the service could not start")


def _raise_open_files_limit() -> None:
    """Every running rollout holds a few descriptors; soft limits are often 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
