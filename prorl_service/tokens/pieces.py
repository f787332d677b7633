"""The bytes that each token stands for, exactly: a character may be spread over several tokens.

Decoding tokens one by one loses that, and the space before a word in some vocabularies. The bytes
of all pieces together are the text, up to the one space that some tokenizers drop at the start.
"""

import json
import re
from functools import cache
from typing import Any

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Pieces:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        decoder = tokenizer.decoder
        kinds = set() if decoder is None else _decoders(json.loads(decoder.__getstate__()))
        self._is_byte_level = "ByteLevel" in kinds
        self._has_bytes = "ByteFallback" in kinds
        self._space = "\u2581" if kinds & {"Metaspace", "ByteFallback", "Replace"} else None

    def __call__(self, id_: int) -> bytes:
        """Empty for an id that the tokenizer does not know."""
        if id_ in self._added:
            return str(self._added[id_].content).encode()
        token = self._tokenizer.id_to_token(id_)
        if token is None:
            return b""
        if self._is_byte_level:
            return _of_byte_level(token)
        if self._has_bytes and (byte := _BYTE.fullmatch(token)):
            return bytes.fromhex(byte[1])
        return (token if self._space is None else token.replace(self._space, " ")).encode()


def shown(piece: bytes) -> tuple[str, bool]:
    r"""Returns the piece as text, and whether it is only part of a character, written as `\xNN`."""
    try:
        return piece.decode(), False
    except UnicodeDecodeError:
        return piece.decode(errors="backslashreplace"), True


def _decoders(decoder: Any) -> set[str]:
    """Kinds of all decoders, of a sequence too."""
    kinds = {decoder["type"]}
    for one in decoder.get("decoders", []):
        kinds |= _decoders(one)
    return kinds


def _of_byte_level(token: str) -> bytes:
    table = _bytes_by_character()
    if all(character in table for character in token):
        return bytes(table[character] for character in token)
    return token.encode()


@cache
def _bytes_by_character() -> dict[str, int]:
    """GPT-2's: printable characters stand for themselves, the others for those from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + number): byte for number, byte in enumerate(others)}
