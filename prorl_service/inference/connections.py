"""HTTP to inference engines: one request, one answer, over connections that are kept alive.

Model calls are what the service does most, so their cost counts: libcurl takes half the CPU time of
aiohttp (docs/architecture.md). Knows nothing of routes or JSON.
"""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

import pycurl

CONNECT_TIMEOUT_MS = 60_000
KEEP_ALIVE_S = 4
"""Seconds for which an idle connection can be reused: uvicorn closes it after 5 s."""
MAX_CONNECTIONS = 1 << 20
"""Most connections kept: by default, libcurl keeps four times the requests in flight."""

MAX_ANSWER_BYTES = 64 << 20
"""Largest answer that is read: four times the answer to a call of 131,072 tokens."""

Method = Literal["GET", "POST"]


class Unreachable(Exception):
    """No answer: nothing listens there, it closed the connection, or it does not speak HTTP."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    content: bytes
    retry_after: bytes = b""
    """Value of that header in a refusal."""


class Connections:
    """Connections to all engines: as many as there are requests, each of which may take forever.

    Belongs to one event loop, and must be closed on it.
    """

    def __init__(self) -> None:
        self._multi = pycurl.AsyncCurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, MAX_CONNECTIONS)
        self._idle: list[pycurl.Curl] = []
        """Handles without settings: resetting one is faster than making one."""
        self._trusted = ssl.get_default_verify_paths()

    async def aclose(self) -> None:
        """Cancels the requests in flight."""
        await self._multi.aclose()

    async def request(
        self,
        method: Method,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
    ) -> HttpAnswer:
        """Raises `Unreachable`. A cancelled request closes its connection, which the engine sees.

        A request that finds its kept connection closed is retried on a new one. `headers` must hold
        no line breaks.
        """
        handle = self._idle.pop() if self._idle else pycurl.Curl()
        try:
            self._set(handle, url, headers)
            if method == "POST":
                handle.setopt(pycurl.POSTFIELDS, body)
            return await self._perform(handle)
        except (pycurl.error, ValueError) as error:
            raise Unreachable(str(error.args[-1])) from error

    def _set(self, handle: pycurl.Curl, url: str, headers: Mapping[str, str]) -> None:
        lines = [f"{name}: {value}" for name, value in headers.items()]
        handle.setopt(pycurl.HTTPHEADER, [*lines, "Expect:"])  # no wait for "100 Continue"
        handle.setopt(pycurl.USERAGENT, "prorl-service")
        handle.setopt(pycurl.URL, url)
        handle.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
        handle.setopt(pycurl.PROXY, "")  # not the environment's
        handle.setopt(pycurl.NOSIGNAL, 1)
        handle.setopt(pycurl.CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS)
        handle.setopt(pycurl.MAXAGE_CONN, KEEP_ALIVE_S)
        if self._trusted.cafile:
            handle.setopt(pycurl.CAINFO, self._trusted.cafile)
        if self._trusted.capath:
            handle.setopt(pycurl.CAPATH, self._trusted.capath)

    async def _perform(self, handle: pycurl.Curl) -> HttpAnswer:
        head: list[bytes] = []
        content = _AnswerBody()
        handle.setopt(pycurl.HEADERFUNCTION, head.append)
        handle.setopt(pycurl.WRITEFUNCTION, content.write)
        try:
            await self._multi.perform(handle)
        except pycurl.error:
            if content.is_too_large:
                raise Unreachable(f"it answered more than {MAX_ANSWER_BYTES} bytes") from None
            raise
        if b"\r\n" not in head:  # libcurl takes this for an empty answer
            raise Unreachable("it closed the connection before it answered")
        status = handle.getinfo(pycurl.RESPONSE_CODE)
        retry_after = b"" if status == HTTPStatus.OK else _value(head, b"retry-after")
        answer = HttpAnswer(status, b"".join(content.parts), retry_after)
        handle.reset()
        self._idle.append(handle)
        return answer


def _value(head: Sequence[bytes], name: bytes) -> bytes:
    """Returns a header's value; empty if the answer has none."""
    headers = (line.partition(b":") for line in head)
    return next((value.strip() for key, _, value in headers if key.lower() == name), b"")


class _AnswerBody:
    """Body of one answer, collected in pieces."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._left = MAX_ANSWER_BYTES

    @property
    def is_too_large(self) -> bool:
        return self._left < 0

    def write(self, part: bytes) -> int:
        """Keeps a part. Taking less than the whole part makes libcurl fail the call."""
        self._left -= len(part)
        if self.is_too_large:
            return 0
        self.parts.append(part)
        return len(part)
