"""HTTP/1.1 towards inference engines, and no more of it than they speak.

A model call is what the service does most. A sixth of the CPU time of a turn went into what general
clients (aiohttp, of those the fastest) do for each request and engines have no use for: redirects,
proxies, cookies, compression, forms. Here connections are kept, requests are written, and answers
read by httptools (Node's parser, as in uvicorn). An answer must say how long it is, or come in
chunks. Knows nothing of routes or JSON.
"""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from http import HTTPStatus
from os import fstat
from typing import BinaryIO, cast
from urllib.parse import urlsplit

import httptools

CONNECT_TIMEOUT_S = 60.0
KEEP_ALIVE_S = 4.0
"""Idle connections are not used for longer: uvicorn closes them after 5 s, and a request that meets
a closing connection fails."""
FILE_PART_BYTES = 1 << 20


class Unreachable(Exception):
    """No answer: nobody listens there, it hung up, or what it says is no HTTP."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content: bytes


class Connections:
    """To all engines together: as many as there are requests, each of which may take for ever."""

    def __init__(self) -> None:
        self._idle: dict[str, list[_Connection]] = {}
        """By URL, the one used last at the end."""

    def close(self) -> None:
        """Those that are idle."""
        for url in self._idle:
            self._close_idle(url)

    async def request(
        self,
        method: str,
        url: str,
        route: str,
        *,
        headers: Mapping[str, str],
        body: bytes | BinaryIO = b"",
    ) -> Answer:
        """Raises `Unreachable`. A cancelled one closes its connection, which tells the engine.

        `url` is scheme, host and port. No line ends in `route` or `headers`.
        """
        try:
            origin = _origin(url)
            connection = self._idle_connection(url) or await self._connect(url, origin)
            return await connection.ask(_head(method, route, origin, headers, body), body)
        except (OSError, ValueError) as error:
            raise Unreachable(str(error) or repr(error)) from error

    def _idle_connection(self, url: str) -> "_Connection | None":
        idle = self._idle.setdefault(url, [])
        if idle and idle[-1].is_fresh:
            return idle.pop()
        self._close_idle(url)
        return None

    def _close_idle(self, url: str) -> None:
        while self._idle[url]:
            self._idle[url].pop().close()

    async def _connect(self, url: str, origin: "_Origin") -> "_Connection":
        """Raises `OSError`, and `ValueError` for a host that has no name."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self._idle[url]),
                    origin.host,
                    origin.port,
                    ssl=_tls() if origin.is_tls else None,
                )
        except TimeoutError:
            raise ConnectionError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from None
        return connection


class _Connection(asyncio.Protocol):
    """For one request at a time. After each it joins `idle`, if it is still open."""

    def __init__(self, idle: "list[_Connection]") -> None:
        self._idle = idle
        self._idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._answer: asyncio.Future[Answer] | None = None
        """That is waited for."""
        self._is_sent = True
        self._may_write = asyncio.Event()
        self._may_write.set()

    @property
    def is_fresh(self) -> bool:
        return self._loop.time() < self._idle_since + KEEP_ALIVE_S

    async def ask(self, head: bytes, body: bytes | BinaryIO) -> Answer:
        """Raises `ConnectionError`."""
        waiting: asyncio.Future[Answer] = self._loop.create_future()
        self._answer = waiting
        try:
            if isinstance(body, bytes):
                self._transport.writelines((head, body))
            else:
                self._transport.write(head)
                await self._send(body)
            answer = await waiting
        except BaseException:
            waiting.cancel()
            self.close()
            raise
        if not self._transport.is_closing():
            self._idle_since = self._loop.time()
            self._idle.append(self)
        return answer

    async def _send(self, file: BinaryIO) -> None:
        """Until there is an answer: it may be refused, and the rest is not read then."""
        self._is_sent = False
        while part := await asyncio.to_thread(file.read, FILE_PART_BYTES):
            await self._may_write.wait()
            if self._answer is None:
                return
            self._transport.write(part)
        self._is_sent = True

    def close(self) -> None:
        self._transport.abort()

    def _end(self, answer: Answer | ConnectionError) -> None:
        waiting, self._answer = self._answer, None
        if waiting is None or waiting.cancelled():
            return
        if isinstance(answer, Answer):
            waiting.set_result(answer)
        else:
            waiting.set_exception(answer)

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(ConnectionError(f"it answered no HTTP: {error!r}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._may_write.set()
        if self in self._idle:
            self._idle.remove(self)
        self._end(ConnectionError(f"it hung up before it had answered{f': {exc}' if exc else ''}"))

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # --- called by the parser ---

    def on_message_begin(self) -> None:
        if self._answer is None:  # nobody asked
            self.close()

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < HTTPStatus.OK:  # another answer follows
            return
        self._end(Answer(status, b"".join(self._parts)))
        self._parts.clear()
        if not (self._is_sent and self._parser.should_keep_alive()):
            self.close()


@dataclass(frozen=True, slots=True)
class _Origin:
    host: str
    port: int
    is_tls: bool
    name: str
    """As the engine is told."""


@lru_cache
def _origin(url: str) -> _Origin:
    """Raises `ValueError`."""
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(f"{url!r} has no host")
    is_tls = parts.scheme == "https"
    name = parts.netloc.rpartition("@")[2].encode("idna").decode()
    return _Origin(parts.hostname, parts.port or (443 if is_tls else 80), is_tls, name)


def _head(
    method: str, route: str, origin: _Origin, headers: Mapping[str, str], body: bytes | BinaryIO
) -> bytes:
    length = len(body) if isinstance(body, bytes) else fstat(body.fileno()).st_size
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    start = f"{method} {route} HTTP/1.1\r\nHost: {origin.name}\r\n"
    return f"{start}{fields}Content-Length: {length}\r\n\r\n".encode()


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
