"""Frames between the service and an execution server: two lengths, a JSON header, raw payload.

Every header carries the `id` of its request, so answers may come in any order and a request may
have several: those with `part` come first, pieces of output or of a long payload. A request
`cancel` has the id of the one it ends, and no answer. Both sides use this module; each checks the
lengths that the other announces.
"""

import json
import struct
from collections.abc import Iterator
from typing import Any

MAX_HEADER_BYTES = 16 << 20
PART_BYTES = 1 << 18
"""Maximum length of a part."""

_LENGTHS = struct.Struct(">II")
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_from_json = json.JSONDecoder().raw_decode


class ProtocolError(Exception):
    """The bytes are not a frame, or the frame is larger than agreed."""


def encode(header: dict[str, Any], payload: bytes = b"") -> bytes:
    text = _to_json(header).encode()
    if len(text) > MAX_HEADER_BYTES or len(payload) >= 1 << 32:
        raise ProtocolError(f"frame too large: {len(text)} + {len(payload)} bytes")
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


class FrameDecoder:
    """Cuts a byte stream into frames, however the stream was chopped up."""

    def __init__(self, max_payload_bytes: int) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yields the frames that `data` completes. After a `ProtocolError` the stream is lost."""
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            header_bytes, payload_bytes = _LENGTHS.unpack_from(self._buffer)
            if header_bytes > MAX_HEADER_BYTES or payload_bytes > self._max_payload_bytes:
                raise ProtocolError(f"frame too large: {header_bytes} + {payload_bytes} bytes")
            payload_start = _LENGTHS.size + header_bytes
            end = payload_start + payload_bytes
            if len(self._buffer) < end:
                return
            with memoryview(self._buffer) as view:  # a payload may be as large as memory allows
                payload = bytes(view[payload_start:end])
            header = _parse(self._buffer[_LENGTHS.size : payload_start])
            del self._buffer[:end]
            yield header, payload


def _parse(data: bytearray) -> dict[str, Any]:
    try:
        text = data.decode()
        header, end = _from_json(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the header is not JSON: {error}") from error
    if not isinstance(header, dict) or end != len(text):
        raise ProtocolError("the header is not a JSON object")
    return header
