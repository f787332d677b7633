"""Serves the gateway's application on a socket, without signals, threads or ticks."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

KEEP_OPEN_S = 3600
"""Seconds that an idle connection stays open; a harness may run one command for long."""

END_S = 1.0
"""Seconds for open calls to end when nobody waits for them."""


@asynccontextmanager
async def served(application: Starlette, listener: socket.socket) -> AsyncIterator[None]:
    """Serves while entered, and owns the socket. At the end open calls are cancelled."""
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=False,
        timeout_keep_alive=KEEP_OPEN_S,
    )
    config.load()
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: HttpToolsProtocol(config=config, server_state=state, app_state={}), sock=listener
    )
    try:
        yield
    finally:
        server.close()
        tasks = list(state.tasks)
        for connection in list(state.connections):
            connection.transport.close()  # open calls notice, and uvicorn logs no cancellation
        if tasks:
            await asyncio.wait(tasks, timeout=END_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
