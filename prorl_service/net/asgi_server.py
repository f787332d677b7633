"""An ASGI application on a port, in the event loop of its caller, for a process that does more.

Unlike `uvicorn.run`, it handles no signals and has no lifespan. Needs uvicorn.
"""

import asyncio
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

KEEP_OPEN_S = 75


class AsgiServer:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._state = ServerState()

    async def start(self, host: str, port: int) -> int:
        """Returns the port that it listens on; `port` 0: any free one. Raises `OSError`."""
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            proxy_headers=False,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_OPEN_S,
        )
        config.load()
        protocol: Any = config.http_protocol_class
        connection = partial(protocol, config=config, server_state=self._state, app_state={})
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(connection, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Returns when the calls that were open have noticed."""
        self._server.close()
        tasks = list(self._state.tasks)
        for connection in list(self._state.connections):
            connection.transport.close()  # uvicorn logs no cancellation
        await asyncio.gather(*tasks, return_exceptions=True)

    def hang_up(self, client: object) -> None:
        """Aborts the connection of a request whose scope has that `client`."""
        for connection in self._state.connections:
            if connection.client == client:  # type: ignore[union-attr]
                connection.transport.abort()
