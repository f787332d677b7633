"""Decodes the private tests of LiveCodeBench: base64 of zlib of a pickle of JSON text.

A pickle is a program, and this one comes from elsewhere, so it is never run. Its opcodes are read,
and must be those of a single text.
"""

import base64
import json
import pickletools
import zlib
from typing import Any

MAX_BYTES = 1 << 30
"""Maximum size, unpacked."""

_TEXT = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_HARMLESS = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}


def decoded(text: str) -> Any:
    """Returns a JSON value; `text` may be JSON itself. Raises `ValueError`."""
    if text.lstrip().startswith("["):
        return json.loads(text)
    packed = base64.b64decode(text, validate=True)
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(packed, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof:
        raise ValueError(f"it is truncated, or unpacks to more than {MAX_BYTES} bytes")
    return json.loads(_pickled_text(unpacked))


def _pickled_text(pickled: bytes) -> str:
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in _TEXT:
            texts.append(str(argument))
        elif opcode.name not in _HARMLESS:
            raise ValueError(f"it is a pickle of more than text: {opcode.name}")
    if len(texts) != 1:
        raise ValueError(f"it is a pickle of {len(texts)} texts")
    return texts[0]
