"""Cost of the way to the execution server: our frames or HTTP, each over UDS and over TCP.

Ours is always a socket pair; the same server over TCP exists only here, and its shell is not lent,
for descriptors do not travel over TCP. HTTP is what the original has: FastAPI on uvicorn, here with
both aiohttp and httpx as its client.
"""

import asyncio
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import aiohttp
import httpx

from bench.frame import Found
from bench.tools.rungs import LIMITS, TIMEOUT_S
from bench.tools.timing import Action, compared, p50, ratio
from prorl_service.sandbox.host.rpc import Channel
from prorl_service.sandbox.kinds.process import ProcessSandboxProvider

UDS, TCP = "frames, UDS", "frames, TCP"
REQUEST = {"action": "ping", "args": {}}


async def measure(quick: bool) -> Found:
    async with AsyncExitStack() as stack:
        actions: dict[tuple[str, str], Action] = {}
        for who, pair in ((UDS, socket.socketpair), (TCP, _tcp_pair)):
            actions[who, "ping"] = _ping(await stack.enter_async_context(_served(*pair())))
        for who, post in (await stack.enter_async_context(_http_clients())).items():
            actions[who, "ping"] = post
        rows = await compared(actions, quick)
    uds, tcp = (p50(rows, who, "ping") for who in (UDS, TCP))
    return Found(rows, {"uds_vs_tcp_ratio": ratio(uds, tcp)})


def _ping(channel: Channel) -> Action:
    return lambda: channel.request("ping", timeout_s=TIMEOUT_S)


@asynccontextmanager
async def _server(connection: socket.socket) -> AsyncIterator[None]:
    async with ProcessSandboxProvider() as provider:
        sandbox = provider.create(image=None, limits=LIMITS)
        process = await sandbox.spawn(connection.fileno())
        connection.close()
        try:
            yield
        finally:  # its connection has been closed
            await process.ended
            process.close()
            await sandbox.clean_up()


@asynccontextmanager
async def _served(ours: socket.socket, theirs: socket.socket) -> AsyncIterator[Channel]:
    async with _server(theirs):
        ours.sendall(b"x")  # no descriptor to lend its shell: every call takes the whole way
        ours.setblocking(False)
        channel = Channel(max_payload_bytes=1 << 20, why_lost=lambda: "the server has ended")
        loop = asyncio.get_running_loop()
        is_unix = ours.family == socket.AF_UNIX
        connect = loop.create_unix_connection if is_unix else loop.create_connection
        await connect(lambda: channel, sock=ours)
        try:
            yield channel
        finally:
            await channel.close()


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    for end in (ours, theirs):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


@contextmanager
def _http_server() -> Iterator[tuple[str, int]]:
    """Yields the path of the server's UNIX socket, and its TCP port."""
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.socket(socket.AF_UNIX) as uds,
        socket.create_server(("127.0.0.1", 0)) as tcp,
    ):
        path = f"{directory}/socket"
        uds.bind(path)
        uds.listen()
        fds = (uds.fileno(), tcp.fileno())
        argv = [sys.executable, "-m", "bench.tools.http_server", *map(str, fds)]
        with subprocess.Popen(argv, pass_fds=fds) as server:
            try:
                yield path, tcp.getsockname()[1]
            finally:
                server.terminate()


Post = Callable[[], Awaitable[object]]


@asynccontextmanager
async def _http_clients() -> AsyncIterator[dict[str, Post]]:
    async with AsyncExitStack() as stack:
        uds, port = stack.enter_context(_http_server())
        url = f"http://127.0.0.1:{port}"
        connectors = {"UDS": aiohttp.UnixConnector(uds), "TCP": aiohttp.TCPConnector()}
        transports = {"UDS": httpx.AsyncHTTPTransport(uds=uds), "TCP": httpx.AsyncHTTPTransport()}
        posts: dict[str, Post] = {}
        for way in ("UDS", "TCP"):
            session = aiohttp.ClientSession(url, connector=connectors[way])
            posts[f"HTTP, {way}, aiohttp"] = _aiohttp_post(await stack.enter_async_context(session))
            client = httpx.AsyncClient(base_url=url, transport=transports[way])
            posts[f"HTTP, {way}, httpx"] = _httpx_post(await stack.enter_async_context(client))
        yield posts


def _aiohttp_post(session: aiohttp.ClientSession) -> Post:
    async def post() -> object:
        async with session.post("/execute_action", json=REQUEST) as answer:
            return await answer.json()

    return post


def _httpx_post(client: httpx.AsyncClient) -> Post:
    async def post() -> object:
        return (await client.post("/execute_action", json=REQUEST)).json()

    return post
