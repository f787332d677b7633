"""Clients that are slow, or too many, on raw sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from prorl_service.client import AsyncRolloutClient
from prorl_service.net.connections import Bounds
from tests.server.application import Settings, serving

TOKEN = "a-token-of-some-length"
BEARER = f"Authorization: Bearer {TOKEN}\r\n".encode()
BOUNDS = Bounds(head_s=0.5, body_silence_s=0.5)
TIMEOUT_S = 60
STATUS = b"GET /v1/status HTTP/1.1\r\nHost: x\r\n" + BEARER + b"\r\n"
SUBMIT = b"POST /v1/rollouts HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with serving(Settings(sandbox="process", token=TOKEN), BOUNDS) as address:
        yield address


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(url)
    return await asyncio.open_connection(address.hostname, address.port)


async def until_closed(url: str, *pieces: bytes) -> bytes:
    """Sends `pieces`, the last one forever; returns the service's answer until it hangs up."""
    reader, writer = await connect(url)

    async def send() -> None:
        for piece in pieces[:-1]:
            writer.write(piece)
        while True:
            writer.write(pieces[-1])
            await asyncio.sleep(0.1)

    sending = asyncio.create_task(send())
    said = b""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            with suppress(ConnectionError):
                while part := await reader.read(1 << 16):
                    said += part
    finally:
        sending.cancel()
        writer.close()
    return said


@pytest.mark.slow
@pytest.mark.parametrize(
    "pieces",
    [
        [b""],
        [b"GET /v1/status HTTP/1.1\r\nHost: x\r\n", b""],
        [b"GET /v1/status HTTP/1.1\r\nX-Slow: ", b"a"],
        [b"\r\n"],
    ],
    ids=["nothing", "half", "trickle", "empty lines"],
)
async def test_the_head_of_a_request_has_a_time_limit(url: str, pieces: list[bytes]) -> None:
    said = await until_closed(url, *pieces)
    assert said == b"" or said.startswith(b"HTTP/1.1 408 ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "later", [[b""], [b"G", b""], [b"\r\n"]], ids=["idle", "half", "empty lines"]
)
async def test_the_head_of_a_later_request_has_a_time_limit(url: str, later: list[bytes]) -> None:
    said = await until_closed(url, STATUS, *later)
    assert said.startswith(b"HTTP/1.1 200 ")


@pytest.mark.slow
async def test_a_body_may_not_stall(url: str) -> None:
    head = SUBMIT + BEARER + b"Content-Length: 1000\r\n\r\n"
    assert await until_closed(url, head + b'{"groups"', b"") == b""


@pytest.mark.slow
async def test_a_body_may_not_trickle_in_after_its_answer(url: str) -> None:
    """A body without the token is not read at all; streamed weights are no exception."""
    weights = b"PUT /v1/weights HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    for head in (SUBMIT + b"Content-Length: 100000\r\n\r\n", weights):
        said = await until_closed(url, head, b"x")
        assert said.startswith(b"HTTP/1.1 401 ")


@pytest.mark.slow
async def test_a_body_that_comes_slowly_is_read(url: str) -> None:
    body = json.dumps({"rollout_ids": ["unknown.0"]}).encode()
    reader, writer = await connect(url)
    head = b"POST /v1/rollouts/cancel HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    writer.write(head + BEARER + b"Content-Length: %d\r\n\r\n" % len(body))
    for number in range(0, len(body), 4):
        writer.write(body[number : number + 4])
        await asyncio.sleep(BOUNDS.body_silence_s / 4)
    async with asyncio.timeout(TIMEOUT_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 404 ")
    writer.close()


@pytest.mark.slow
async def test_a_long_poll_and_streamed_weights_are_not_cut_off(url: str) -> None:
    reader, writer = await connect(url)
    writer.write(b"PUT /v1/weights HTTP/1.1\r\nHost: x\r\n" + BEARER)
    writer.write(b"Content-Length: 8\r\n\r\n")
    async with AsyncRolloutClient(url, token=TOKEN) as client:
        waited_s = 3 * BOUNDS.head_s
        with pytest.raises(Exception, match="404"):
            await client.sampler("none", wait_s=waited_s)
        await asyncio.sleep(waited_s)
    writer.write(bytes(8))
    async with asyncio.timeout(TIMEOUT_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 ")
    writer.close()


@pytest.fixture
async def narrow_url() -> AsyncIterator[str]:
    settings = Settings(sandbox="process", token=TOKEN)
    async with serving(settings, Bounds(connections=8)) as address:
        yield address


async def test_more_connections_than_allowed_are_refused_cleanly(narrow_url: str) -> None:
    kept = [await connect(narrow_url) for _ in range(8)]
    for reader, writer in kept:
        writer.write(STATUS)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    said = await until_closed(narrow_url, STATUS, b"")
    assert said.startswith(b"HTTP/1.1 429 ")
    assert b"retry-after: " in said.lower()
    assert b"--max-connections" in said
    for _, writer in kept:
        writer.close()
    async with AsyncRolloutClient(narrow_url, token=TOKEN) as client:  # this client retries
        await client.status()


async def test_far_more_connections_are_closed_without_an_answer(narrow_url: str) -> None:
    opened = [await connect(narrow_url) for _ in range(8 + 2 * BOUNDS.surplus)]
    heard = {asyncio.create_task(reader.read()) for reader, _ in opened}
    unheard = 0
    async with asyncio.timeout(TIMEOUT_S):
        while unheard < BOUNDS.surplus:
            ended, heard = await asyncio.wait(heard, return_when=asyncio.FIRST_COMPLETED)
            unheard += sum(one.exception() is not None or not one.result() for one in ended)
    for _, writer in opened:
        writer.close()
    await asyncio.gather(*heard, return_exceptions=True)
    async with AsyncRolloutClient(narrow_url, token=TOKEN) as client:
        await client.status()
