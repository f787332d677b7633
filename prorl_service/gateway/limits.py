"""Limits on what one rollout's program may ask of its gateway, and of the service with it; and
bodies of requests, read within them.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request

from prorl_service.gateway.calls import Refused


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """Limits of one rollout's gateway, in a sandbox and outside alike."""

    connections: int = 64
    """Connections at once; further ones are refused. Outside, where connections are the service's
    own: requests at once."""
    head_s: float = 10.0
    """Seconds from the connection, or the first byte of a later request, to the end of the
    headers. Outside, the service's own limit holds."""
    calls: int = 32
    """Calls in flight; further ones wait."""
    body_bytes: int = 32 << 20
    """Size of a body, compressed and not."""
    bodies_bytes: int = 64 << 20
    """Size of the bodies of all calls in flight together."""


LIMITS = DoorLimits()


class OpenCalls:
    """The calls of one gateway that are in flight."""

    def __init__(self, limits: DoorLimits) -> None:
        self.limits = limits
        self.held_bytes = 0
        """Size of their bodies together."""
        self._slots = asyncio.Semaphore(limits.calls)
        self._open = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator["BodyRoom"]:
        """Waits until a call may begin; it ends with the block. Raises `Refused` if too many
        wait."""
        if self._open >= self.limits.connections:
            raise Refused("too many requests at once", 429, "rate_limit_error")
        self._open += 1
        room = BodyRoom(self)
        try:
            async with self._slots:
                yield room
        finally:
            self.held_bytes -= room.held_bytes
            self._open -= 1


@dataclass(slots=True)
class BodyRoom:
    """Room for the body of one call, until the call ends."""

    calls: OpenCalls
    held_bytes: int = 0

    def check(self, size: int) -> None:
        """Raises `Refused` for the size of a body that is too large."""
        most = self.calls.limits.body_bytes
        if size > most:
            raise Refused(f"the body is larger than {most} bytes", 413, "request_too_large")

    def hold(self, count: int) -> None:
        """Counts further bytes that are kept. Raises `Refused` if all bodies become too large."""
        most = self.calls.limits.bodies_bytes
        self.held_bytes += count
        self.calls.held_bytes += count
        if self.calls.held_bytes > most:
            problem = f"the bodies of all calls in flight are larger than {most} bytes"
            raise Refused(problem, 429, "rate_limit_error")


async def read_body(request: Request, room: BodyRoom) -> tuple[bytes, dict[str, Any]]:
    """Returns the body, and the object in it. Raises `Refused`, and `ClientDisconnect`."""
    raw = await _whole(request, room)
    match request.headers.get("content-encoding", "identity").strip().lower():
        case "identity":
            pass
        case "gzip" | "x-gzip":
            raw = _unpacked(raw, room)
        case encoding:
            raise Refused(f"content-encoding: {encoding!r} is not known", status=415)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refused(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused("the body is not a JSON object")
    return raw, body


async def _whole(request: Request, room: BodyRoom) -> bytes:
    announced = request.headers.get("content-length", "0")
    room.check(int(announced) if announced.isdigit() else 0)
    read = bytearray()  # a list of chunks would cost more than they hold, if each has one byte
    async for chunk in request.stream():
        room.check(len(read) + len(chunk))
        room.hold(len(chunk))
        read += chunk
    return bytes(read)


def _unpacked(raw: bytes, room: BodyRoom) -> bytes:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        unpacked = unpacker.decompress(raw, room.calls.limits.body_bytes + 1)
    except zlib.error as error:
        raise Refused(f"the body is not gzip: {error}") from error
    room.check(len(unpacked))
    if not unpacker.eof:
        raise Refused("the body is not gzip: it ends early")
    room.hold(len(unpacked))
    return unpacked
