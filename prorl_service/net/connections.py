"""Bounds on what a connection may cost before its token is checked.

The parser has no bounds: one endless header would fill the memory before any middleware sees it,
and half a request would stay forever. Responses may take any time: long polls and streams do, while
the client reads them (`net.sockets`). uvicorn itself closes connections that are idle between
requests.
"""

import asyncio
from dataclasses import dataclass
from enum import Enum, auto

from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Bounds:
    connections: int = 4096
    surplus: int = 64
    """Connections above the limit that get an answer; further ones are closed without one."""
    head_bytes: int = 64 * 1024
    """Limit on request line plus headers; checked per chunk, so the last chunk may exceed it."""
    head_s: float = 20.0
    """Seconds from the connection, or the first byte of a later request, to the end of the
    headers."""
    body_silence_s: float = 20.0
    """Seconds of the longest pause within a body that the service is ready to read."""
    untimed: tuple[str, str] | None = None
    """Method and path of a request whose body may pause."""


class Awaited(Enum):
    HEAD = auto()
    BODY = auto()
    RESPONSE = auto()
    """The response, or the next request."""


class BoundedConnection(HttpToolsProtocol):
    """HTTP connection with the `bounds` of its subclass, which `bounded` makes."""

    bounds = Bounds()
    full: ASGIApp = Response(status_code=503)
    """Application that answers surplus connections."""
    _awaited = Awaited.HEAD
    _head_bytes = 0
    _timer: asyncio.TimerHandle | None = None
    _is_surplus = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        surplus = len(self.connections) - self.bounds.connections
        self._is_surplus = surplus > 0
        if surplus > self.bounds.surplus:
            transport.abort()
        else:
            self._expect_within(self.bounds.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_within(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._awaited is Awaited.HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > self.bounds.head_bytes:
                self.send_400_response(f"more than {self.bounds.head_bytes} bytes before the body")
        elif self._awaited is Awaited.BODY:
            if not self._has_answered:
                self._expect_within(self._silence_s)
        elif self._has_answered:  # bytes that do not begin a request yet: it is no longer idle
            self._await_head()

    def on_message_begin(self) -> None:
        if self._awaited is not Awaited.HEAD:
            self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._awaited = Awaited.BODY
        self._expect_within(None)
        if self._is_surplus:
            self.app = type(self).full
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._awaited = Awaited.RESPONSE
        self._expect_within(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._awaited is Awaited.BODY:  # the rest, which is not read, may end in this time
            self._expect_within(self.bounds.body_silence_s)

    @property
    def is_busy(self) -> bool:
        """Whether a request is being read or answered."""
        return self._awaited is not Awaited.HEAD and not self._has_answered

    @property
    def _has_answered(self) -> bool:
        return self.cycle is not None and self.cycle.response_complete

    @property
    def _silence_s(self) -> float | None:
        is_untimed = (self.scope["method"], self.scope["path"]) == self.bounds.untimed
        return None if is_untimed else self.bounds.body_silence_s

    def _await_head(self) -> None:
        self._awaited, self._head_bytes = Awaited.HEAD, 0
        self._expect_within(self.bounds.head_s)

    def _expect_within(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        if self._awaited is Awaited.BODY and self.flow.read_paused and not self._has_answered:
            self._expect_within(self.bounds.body_silence_s)  # the service does not read
            return
        if self._awaited is Awaited.HEAD and not self.transport.get_write_buffer_size():
            self.transport.write(TIMED_OUT)
            self.transport.close()
        else:
            self.transport.abort()

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing: anybody could fill the log."""


def bounded(bounds: Bounds, full: ASGIApp) -> type[BoundedConnection]:
    """Returns connections with `bounds`; `full` answers those for which there is no room."""
    return type("BoundedConnection", (BoundedConnection,), {"bounds": bounds, "full": full})
