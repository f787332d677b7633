"""Serves the gateway's application on a socket, without signals, threads or ticks."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from prorl_service.gateway.connections import ProgramConnections
from prorl_service.gateway.limits import LIMITS, DoorLimits
from prorl_service.net.connections import BoundedConnection, Bounds
from prorl_service.net.sockets import Acceptor

KEEP_OPEN_S = 3600
"""Seconds that an idle connection stays open; a harness may run one command for long."""

END_S = 1.0
"""Seconds for open calls to end when nobody waits for them."""


class _Connection(BoundedConnection):
    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        limits: DoorLimits,
        connections: ProgramConnections,
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self.bounds = Bounds(connections=limits.connections, surplus=0, head_s=limits.head_s)
        self._all = connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not transport.is_closing():
            self._all.make_room(self)


@asynccontextmanager
async def served(
    application: ASGIApp,
    listener: socket.socket,
    connections: ProgramConnections,
    limits: DoorLimits = LIMITS,
) -> AsyncIterator[None]:
    """Serves while entered, and owns the socket. At the end open calls are cancelled."""
    config = uvicorn.Config(
        application,
        ws="none",  # WebSockets' connections would escape the limits
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        timeout_keep_alive=KEEP_OPEN_S,
    )
    config.load()
    with connections.of_one() as state:
        acceptor = Acceptor(listener, lambda: _Connection(config, state, limits, connections))
        try:
            yield
        finally:
            await acceptor.close()
            await _ended(state)


async def _ended(state: ServerState) -> None:
    tasks = list(state.tasks)
    for connection in list(state.connections):
        connection.transport.close()  # open calls notice, and uvicorn logs no cancellation
    if tasks:
        await asyncio.wait(tasks, timeout=END_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
