"""Peers that vanish without a word, or read nothing of what they asked for."""

import asyncio
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest

from prorl_service.client import AsyncRolloutClient, RolloutClient
from prorl_service.client.blocking import finished
from prorl_service.net.connections import Bounds
from prorl_service.net.sockets import NOTICE_VANISHED, listener
from prorl_service.schemas import BackendSpec, RolloutState
from prorl_service.server.run import http_config
from prorl_service.testing import StubEngine
from tests.front.test_hang import NETWORK, ip, namespace
from tests.server.application import Server, Settings, application, running, until
from tests.server.scored_agent import SCORED, scored

__all__ = ["namespace"]

TOKEN = "a-token-of-some-length"
SOON_S = 2
SMALL = 4096
PATIENT = Bounds(head_s=3600, body_silence_s=3600)
"""Bounds so wide that only the kernel cuts a connection off."""


@pytest.fixture
def settings(engine: StubEngine) -> Settings:
    backends = (BackendSpec(url=engine.url),)
    return Settings(backends=backends, agents=(SCORED,), sandbox="process", token=TOKEN)


@asynccontextmanager
async def impatient(settings: Settings, host: str = "127.0.0.1") -> AsyncIterator[Server]:
    """Runs a service whose kernel buffers little and drops a silent peer after `SOON_S`."""
    with listener(host, 0) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SOON_S * 1000)
        async with application(settings) as app:
            server = Server(http_config(app, PATIENT))
            async with running(server, [bound]):
                yield server


def url_of(server: Server) -> str:
    host, port = server.servers[0].sockets[0].getsockname()
    return f"http://{host}:{port}"


def connected(server: Server) -> bool:
    port = server.servers[0].sockets[0].getsockname()[1]
    return any(
        one.laddr.port == port and one.status == psutil.CONN_ESTABLISHED
        for one in psutil.Process().net_connections("tcp")
    )


async def until_connected(server: Server, *, is_so: bool) -> None:
    async def holds() -> bool:
        return connected(server) is is_so

    await until(holds)


@pytest.mark.slow
async def test_a_client_that_reads_nothing_is_cut_off(settings: Settings) -> None:
    async with impatient(settings) as server:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
            client.connect(server.servers[0].sockets[0].getsockname())
            client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 8)
            await until_connected(server, is_so=True)
            await until_connected(server, is_so=False)


@pytest.mark.slow
async def test_a_client_that_waits_longer_is_not_cut_off(settings: Settings) -> None:
    group = scored("g", 0, 1, sleep=2 * SOON_S)
    async with (
        impatient(settings) as server,
        AsyncRolloutClient(url_of(server), token=TOKEN, retry_s=0) as client,
    ):
        await client.submit([group])
        ended = await client.wait(group.rollout_ids(), timeout_s=60)
    assert {one.state for one in ended} == {RolloutState.DONE}


STREAM = """
import socket, sys
host, port, token, body = sys.argv[1:]
client = socket.create_connection((host, int(port)))
head = f"POST /v1/rollouts/stream HTTP/1.1\\r\\nHost: x\\r\\nContent-Type: application/json\\r\\n"
head += f"Authorization: Bearer {token}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
client.sendall((head + body).encode())
while said := client.recv(1 << 16):
    print(said, flush=True)
"""


@pytest.mark.processes
async def test_a_machine_that_vanishes_frees_its_stream(namespace: str, settings: Settings) -> None:
    group = scored("g", 0, sleep=1000)
    async with impatient(settings, f"{NETWORK}.1") as server:
        address = server.servers[0].sockets[0].getsockname()
        async with AsyncRolloutClient(url_of(server), token=TOKEN) as client:
            await client.submit([group])
        await until_connected(server, is_so=False)
        body = '{"rollout_ids": ["g.0"]}'
        command = ["ip", "netns", "exec", namespace, sys.executable, "-c", STREAM]
        arguments = [address[0], str(address[1]), TOKEN, body]
        far = await asyncio.create_subprocess_exec(*command, *arguments, stdout=PIPE)
        assert far.stdout is not None
        assert b"200 OK" in await far.stdout.readline()
        ip("-n", namespace, "link", "set", "prorl-far", "down")
        await until_connected(server, is_so=False)
        far.kill()
        await far.wait()
        async with AsyncRolloutClient(url_of(server), token=TOKEN) as client:
            await client.cancel(["g.0"])


def options_of(connection: socket.socket) -> dict[tuple[int, int], int]:
    return {(level, name): connection.getsockopt(level, name) for level, name, _ in NOTICE_VANISHED}


WANTED = {(level, name): value for level, name, value in NOTICE_VANISHED}


def test_connections_that_a_server_accepts_have_the_options() -> None:
    with listener("127.0.0.1", 0) as bound:
        bound.listen()
        with socket.create_connection(bound.getsockname()), bound.accept()[0] as accepted:
            assert options_of(accepted) == WANTED


async def test_connections_that_a_client_opens_have_the_options(settings: Settings) -> None:
    async with impatient(settings) as server, AsyncRolloutClient(url_of(server)) as client:
        request = client._http.build_request("GET", "/health")
        response = await client._http.send(request, stream=True)
        assert options_of(response.extensions["network_stream"].get_extra_info("socket")) == WANTED
        await response.aclose()


async def test_connections_that_a_blocking_client_opens_have_the_options(
    engine: StubEngine,
) -> None:
    def options() -> dict[tuple[int, int], int]:
        with RolloutClient(engine.url) as client:
            http = client._client._http
            response = finished(http.send(http.build_request("GET", "/health"), stream=True))
            found = options_of(response.extensions["network_stream"].get_extra_info("socket"))
            finished(response.aclose())
            return found

    assert await asyncio.to_thread(options) == WANTED
