"""Bodies of requests: read within limits, unpacked, and parsed."""

import zlib
from typing import Any

import orjson
from starlette.requests import Request

from prorl_service.gateway.calls import Refused
from prorl_service.gateway.limits import BodyRoom


async def read(request: Request, room: BodyRoom) -> tuple[bytes, dict[str, Any]]:
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
        unpacked = unpacker.decompress(raw, room.max_bytes + 1)
    except zlib.error as error:
        raise Refused(f"the body is not gzip: {error}") from error
    room.check(len(unpacked))
    if not unpacker.eof:
        raise Refused("the body is not gzip: it ends early")
    room.hold(len(unpacked))
    return unpacked
