"""Serves the gateway's application on a socket, without signals, threads or ticks, and bounds the
connections that the programs of all rollouts hold: the service needs descriptors itself.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from prorl_service.gateway.limits import LIMITS, DoorLimits
from prorl_service.net.connections import BoundedConnection, Bounds
from prorl_service.net.sockets import Acceptor
from prorl_service.utils import descriptors

KEEP_OPEN_S = 3600
"""Seconds that an idle connection stays open; a harness may run one command for long."""

END_S = 1.0
"""Seconds for open calls to end when nobody waits for them."""

SHARE = 4
"""Programs may have one in so many of the service's descriptors. Its API has half of them."""

Held = set[BoundedConnection]


class ProgramConnections:
    """Once there are too many, the program that holds most loses one; so no program can take what
    others need."""

    def __init__(self, most: int | None = None) -> None:
        self._most = descriptors.most() // SHARE if most is None else most
        self._doors: list[ServerState] = []

    @contextmanager
    def of_one(self) -> Iterator[ServerState]:
        """Returns what keeps the connections to one gateway."""
        door = ServerState()
        self._doors.append(door)
        try:
            yield door
        finally:
            self._doors = [one for one in self._doors if one is not door]

    def make_room(self, new: BoundedConnection) -> None:
        """Ends a connection if there are too many with this new one."""
        held = [_held(door) for door in self._doors]
        if sum(len(one) for one in held) <= self._most:
            return
        most = max(held, key=lambda one: (len(one), new in one))
        (new if new in most else min(most, key=lambda one: one.is_busy)).transport.abort()


def _held(door: ServerState) -> Held:
    return {
        one
        for one in door.connections
        if isinstance(one, BoundedConnection) and not one.transport.is_closing()
    }


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
