"""The life of a service's process: it serves until a signal, then drains.

After the first SIGTERM or SIGINT nothing more is begun, and running rollouts may end. The second
ends them immediately. A signal while the service is being composed ends that.
"""

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI

from prorl_service import __version__
from prorl_service.errors import Overloaded
from prorl_service.net.connections import Bounds, bounded
from prorl_service.net.credentials import page_link
from prorl_service.net.sockets import listener
from prorl_service.schemas import RolloutState
from prorl_service.server.app import create_app
from prorl_service.server.errors import error_response
from prorl_service.server.service import Service
from prorl_service.server.settings import HttpOptions
from prorl_service.utils import descriptors

log = logging.getLogger(__name__)

RUNNING = (RolloutState.RUNNING, RolloutState.EVALUATING)
GARBAGE_OBJECTS = 20_000
"""New objects until the youngest generation is collected."""
GRACE_S = 5
"""Seconds for which open connections may delay a shutdown, once all waits have been ended."""

UNTIMED = ("PUT", "/v1/weights")
"""Request whose body may pause: trainers gather weights while they send them. The pool has limits
of its own."""
FULL = error_response(
    Overloaded(
        "the service has no room for more connections",
        hint="keep fewer open, or raise `--max-connections`",
    )
)
FULL.headers["Connection"] = "close"


class Server(uvicorn.Server):
    """Serves a service that was composed before, announces it, and drains it."""

    def __init__(
        self, service: Service, config: uvicorn.Config, options: HttpOptions, token: str | None
    ) -> None:
        super().__init__(config)
        self._token = token
        self._service = service
        self._drain_s = options.drain_s
        self._announcement = options.announcement()
        self._draining: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `run`: uvicorn would raise them again before the service has ended."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        if self._announcement is not None:
            self._announcement.write(port)
        url = f"http://{host}:{port}"
        log.info("prorl %s at %s: `prorl open` shows it in a browser", __version__, url)
        if self._token is not None and sys.stderr.isatty():  # a log file is to have no secret
            sys.stderr.write(f"  {page_link(url, self._token)}\n")
        log.info(self._service.summary())
        # Objects alive by now live forever, and cycles are rare: this saves a tenth of CPU time.
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
        drain = _drain(self._service, self._drain_s)
        self._draining = self._service.background.run_once(drain, name="drain")
        await asyncio.wait([self._draining])
        await super().shutdown(sockets)


def run(
    composing: AbstractAsyncContextManager[Service], options: HttpOptions, token: str | None
) -> None:
    """Returns when the service has ended. Raises `ProRLError` if it could not start."""
    with (
        listener(options.host, options.port) as bound,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        ended_by = runner.run(_run(composing, options, token, bound))
    if ended_by is not None:
        signal.signal(ended_by, signal.SIG_DFL)
        signal.raise_signal(ended_by)


async def _run(
    composing: AbstractAsyncContextManager[Service],
    options: HttpOptions,
    token: str | None,
    bound: socket.socket,
) -> signal.Signals | None:
    """Returns the signal that ended it, if one did."""
    received: list[signal.Signals] = []
    this_task, server = asyncio.current_task(), None

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        if server is not None:
            server.handle_exit(number, None)
        elif this_task is not None:
            this_task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    try:
        async with composing as service:
            bounds = Bounds(
                connections=min(options.max_connections, descriptors.raise_limit() // 2)
            )
            app = create_app(service, options, token)
            server = Server(service, http_config(app, bounds), options, token)
            await server.serve([bound])
        unfinished = service.executor.inflight.count()
        log.info("stopped; %d rollouts of run %s are unfinished", unfinished, service.run)
    except asyncio.CancelledError:
        if not received:
            raise
    return received[0] if received else None


async def _drain(service: Service, budget_s: float) -> None:
    executor = service.executor
    if running := sum(executor.inflight.count_by_state().get(state, 0) for state in RUNNING):
        text = "%d rollouts have %g s to end; a second signal does not wait for them"
        log.info(text, running, budget_s)
    try:
        await executor.drain(budget_s)
    finally:
        service.samplers.end_waits()
        service.events.close()


def http_config(app: FastAPI, bounds: Bounds, **options: Any) -> uvicorn.Config:
    """Returns a configuration with `bounds`. `options`: those of `uvicorn.Config`."""
    return uvicorn.Config(
        app,
        http=bounded(replace(bounds, untimed=UNTIMED), FULL),
        ws="none",  # no route has WebSockets, whose connections would escape the bounds
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        **options,
    )
