"""Connections to gateways, on raw sockets: how many there may be, and for how long."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.responses import PlainTextResponse

from prorl_service.gateway.limits import LIMITS, DoorLimits
from prorl_service.gateway.serving import ProgramConnections, served

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: "


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def is_answered(self) -> bool:
        """Sends a request, and returns whether there is a response."""
        self.send(REQUEST)
        try:
            return (await self._reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        except (OSError, asyncio.IncompleteReadError):
            return False

    async def said(self) -> bytes:
        """Returns all that the gateway sends until it hangs up."""
        with suppress(ConnectionError):
            return await self._reader.read()
        return b""

    def close(self) -> None:
        self._writer.close()


class ServedDoor:
    def __init__(self, port: int) -> None:
        self._port = port
        self.clients: list[RawClient] = []

    async def connect(self) -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self._port))
        self.clients.append(client)
        return client


@asynccontextmanager
async def opened(
    connections: ProgramConnections, limits: DoorLimits = LIMITS
) -> AsyncIterator[ServedDoor]:
    listener = socket.create_server(("127.0.0.1", 0))
    door = ServedDoor(listener.getsockname()[1])
    async with served(PlainTextResponse("ok"), listener, connections, limits):
        yield door
        for client in door.clients:
            client.close()


async def test_a_head_has_a_time_limit() -> None:
    async with opened(ProgramConnections(), DoorLimits(head_s=0.2)) as door:
        client = await door.connect()
        client.send(HALF)
        async with asyncio.timeout(10):
            assert (await client.said()).startswith(b"HTTP/1.1 408 ")


async def test_an_idle_connection_stays() -> None:
    async with opened(ProgramConnections(), DoorLimits(head_s=0.1)) as door:
        client = await door.connect()
        assert await client.is_answered()
        await asyncio.sleep(0.3)
        assert await client.is_answered()


async def test_connections_beyond_the_limit_are_refused() -> None:
    async with opened(ProgramConnections(), DoorLimits(connections=3)) as door:
        kept = [await door.connect() for _ in range(3)]
        assert [await one.is_answered() for one in kept] == [True] * 3
        assert not await (await door.connect()).is_answered()
        kept[0].close()
        while not await (await door.connect()).is_answered():
            pass  # until the gateway has noticed
        assert await kept[1].is_answered()


@pytest.mark.parametrize("greedy", [1, 2])
async def test_programs_that_hold_most_make_room_for_others(greedy: int) -> None:
    connections = ProgramConnections(most=12)
    async with opened(connections) as first, opened(connections) as second:
        for door in (first, second)[:greedy]:
            for _ in range(20):
                (await door.connect()).send(HALF)
        async with opened(connections) as victim:
            clients = [await victim.connect() for _ in range(4)]
            assert [await one.is_answered() for one in clients] == [True] * 4
            for _ in range(20):
                (await first.connect()).send(HALF)
            assert [await one.is_answered() for one in clients] == [True] * 4
