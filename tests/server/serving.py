"""The application on a port of this machine, and a task for it."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import Group, Limits, Message, Rollout, Task
from prorl_service.server.app import create_app
from prorl_service.server.connections import Bounds
from prorl_service.server.run import http_config
from prorl_service.server.settings import Settings


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@asynccontextmanager
async def serving(settings: Settings, bounds: Bounds | None = None) -> AsyncIterator[str]:
    server = Server(
        http_config(create_app(settings), bounds or Bounds(), port=0, log_level="warning")
    )
    async with running(server):
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def running(
    server: Server, sockets: list[socket.socket] | None = None
) -> AsyncIterator[None]:
    task = asyncio.create_task(server.serve(sockets))
    await server.ready.wait()
    try:
        yield
    finally:
        server.should_exit = True
        await task


def group(group_id: str = "g", n: int = 1, **limits: Any) -> Group:
    task = Task(
        task_id="read",
        agent="math",
        messages=[Message(role="user", content="What is the secret number?")],
        data={"answer": "4711", "files": {"secret": "4711\n"}},
    )
    return Group(group_id=group_id, task=task, n=n, limits=Limits(**limits))


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """The test's own time-out is the budget."""
    while not await holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def finished(client: AsyncRolloutClient, submitted: Group) -> list[Rollout]:
    await client.submit([submitted])
    return await client.wait(submitted.rollout_ids(), timeout_s=60)
