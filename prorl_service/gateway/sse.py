"""Server-sent events as bytes. Source: the HTML standard, section 9.2."""

from collections.abc import Mapping
from typing import Any

import orjson


def data(value: Mapping[str, Any], event: str | None = None) -> bytes:
    """Returns an event whose data is JSON, which has no line breaks of its own."""
    name = f"event: {event}\n".encode() if event else b""
    return b"".join((name, b"data: ", orjson.dumps(value), b"\n\n"))


def comment(text: str) -> bytes:
    return f": {text}\n\n".encode()
