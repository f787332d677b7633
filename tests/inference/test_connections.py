"""`Connections` against servers that send exactly the bytes that a test gives them."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.inference import connections as module
from prorl_service.inference.connections import Connections, HttpAnswer, Unreachable
from tests.inference.raw_server import OK, Talk, answering, read_request, server_that


@pytest.fixture
async def connections() -> AsyncIterator[Connections]:
    async with aclosing(Connections()) as opened:
        yield opened


async def get(connections: Connections, url: str) -> HttpAnswer:
    return await connections.request("GET", url + "/health", headers={})


async def test_an_answer_that_is_too_large_is_cut_short(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 1 << 20)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:  # until the connection is closed
            writer.write(bytes(1 << 16))
            await writer.drain()

    async with server_that(talk) as url:
        with pytest.raises(Unreachable, match="more than 1048576 bytes"):
            await get(connections, url)
    fits = b"HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n" + bytes(1 << 20)
    async with server_that(answering(fits)) as url:
        assert len((await get(connections, url)).content) == 1 << 20


# --- requests and answers -----------------------------------------------------------------------


async def test_a_request_carries_its_path_headers_and_body(connections: Connections) -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await read_request(reader))
        writer.write(OK)

    async with server_that(talk) as url:
        answer = await connections.request(
            "POST", url + "/route?mode=keep", headers={"X-Session-ID": "r"}, body=b"body" * 2**18
        )
    ((head, body),) = seen
    assert (answer, body) == (HttpAnswer(200, b"ok"), b"body" * 2**18)
    lines = head.decode().splitlines()
    assert lines[0] == "POST /route?mode=keep HTTP/1.1"
    assert {f"Host: {url.removeprefix('http://')}", "X-Session-ID: r"} < set(lines)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nlater", HttpAnswer(503, b"later")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", HttpAnswer(204, b"")),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, HttpAnswer(200, b"ok")),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
            HttpAnswer(200, b"abc"),
        ),
    ],
)
@given(cuts=st.sets(st.integers(1, 60)))
async def test_an_answer_may_come_in_any_pieces(
    said: bytes, answer: HttpAnswer, cuts: set[int]
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        ends = [*sorted(cuts), len(said)]
        for start, end in zip([0, *ends], ends, strict=False):
            writer.write(said[start:end])
            await asyncio.sleep(0)
        await reader.read()

    async with aclosing(Connections()) as connections, server_that(talk) as url:
        assert await get(connections, url) == answer


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ],
)
async def test_a_broken_or_foreign_answer_is_unreachable(
    said: bytes, connections: Connections
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(said)

    async with server_that(talk) as url:
        with pytest.raises(Unreachable):
            await get(connections, url)


@pytest.mark.parametrize(
    "url",
    [
        "http://[",
        "http://a\0b",
        "http://ü",
        "http://:80",
        "http://h:99999",
        "http://a..b",
        "http://no.such.invalid",
        "http://127.0.0.1:9",
    ],
)
async def test_a_url_that_leads_nowhere_is_unreachable(url: str, connections: Connections) -> None:
    with pytest.raises(Unreachable):
        await get(connections, url)


async def test_a_host_that_does_not_take_connections_is_unreachable(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECT_TIMEOUT_MS", 200)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        address = full.getsockname()
        for _ in range(2):  # more than the socket queues
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        with pytest.raises(Unreachable, match="timed out"):
            await get(connections, f"http://127.0.0.1:{address[1]}")


# --- connections --------------------------------------------------------------------------------


class Counting:
    """A talk that counts connections and answers all requests."""

    def __init__(self, answer: bytes = OK) -> None:
        self.opened = 0
        self._answer = answer

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        while True:
            await read_request(reader)
            writer.write(self._answer)


async def test_connections_are_reused_and_never_shared_by_two_requests(
    connections: Connections,
) -> None:
    async with server_that(count := Counting()) as url:
        for _ in range(3):
            await get(connections, url)
        assert count.opened == 1
        await asyncio.gather(*(get(connections, url) for _ in range(20)))
        await asyncio.gather(*(get(connections, url) for _ in range(20)))
        assert count.opened == 20


async def test_a_connection_that_is_about_to_close_is_not_reused(
    connections: Connections,
) -> None:
    closing_answer = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with server_that(count := Counting(closing_answer)) as url:
        for _ in range(3):
            assert await get(connections, url) == HttpAnswer(200, b"ok")
        assert count.opened == 3


@pytest.mark.slow
async def test_a_connection_that_was_idle_for_long_is_not_reused(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server_that(count := Counting()) as url:
        monkeypatch.setattr(module, "KEEP_ALIVE_S", 1)
        await get(connections, url)
        await asyncio.sleep(2.1)
        await get(connections, url)
        assert count.opened == 2


async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(OK)


FORGED = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"


@pytest.mark.parametrize("talk", [answer_and_close, answering(OK + FORGED)])
async def test_a_connection_with_anything_after_an_answer_is_not_reused(
    connections: Connections, talk: Talk
) -> None:
    async with server_that(talk) as url:
        for _ in range(3):
            assert await get(connections, url) == HttpAnswer(200, b"ok")
            await asyncio.sleep(0.1)


async def test_a_cancelled_request_closes_its_connection_and_no_other(
    connections: Connections,
) -> None:
    asked, left = asyncio.Semaphore(0), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await read_request(reader)
        asked.release()
        if body == b"cancelled":
            await reader.read()
            left.set()
        else:
            await left.wait()
            writer.write(OK)

    async with server_that(talk) as url:
        calls = [
            asyncio.create_task(connections.request("POST", url + "/", headers={}, body=body))
            for body in (b"cancelled", b"other")
        ]
        await asked.acquire()
        await asked.acquire()
        calls[0].cancel()
        assert await calls[1] == HttpAnswer(200, b"ok")
    assert calls[0].cancelled()


# --- TLS ----------------------------------------------------------------------------------------


async def test_tls_connects_only_to_trusted_certificates(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(served)
    async with server_that(Counting(), served) as url:
        with pytest.raises(Unreachable, match="certificate"):
            await get(connections, url)
        with authority.cert_pem.tempfile() as trusted:
            monkeypatch.setenv("SSL_CERT_FILE", trusted)
            async with aclosing(Connections()) as trusting:
                assert await get(trusting, url) == HttpAnswer(200, b"ok")
