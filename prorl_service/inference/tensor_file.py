"""Safetensors files with weights: their headers, and a check of their values as they come by.

The check needs neither torch nor numpy: it looks at the byte of each number that holds the upper
bits of the exponent, and at the others only where that byte allows NaN or infinity. Knows no model:
an engine finds out whether names and shapes fit.
"""

import math
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from prorl_service.errors import BackendRejected, WeightsRejected
from prorl_service.schemas import ADAPTER_CONFIG

MAX_HEADER_BYTES = 100 * 10**6
"""Largest header that the format allows."""
READ_BYTES = 4 * 2**20
BROKEN = "look at the loss and the gradients of the step that made them; no engine was given them"


@dataclass(frozen=True, slots=True)
class _Type:
    bits: int
    """Bits of one element."""
    width: int = 1
    """Bytes of one number; complex elements have two."""
    marks: bytes = b""
    """Upper bytes that NaN and infinity may have; empty for types that have neither."""
    exponent: int = 0
    """Bits that are all set in NaN and infinity, and in no other number."""

    @property
    def is_told_by_marks(self) -> bool:
        return not self.exponent & ((1 << (8 * self.width - 8)) - 1)


def _float(bits: int, exponent: int, *, numbers: int = 1) -> _Type:
    upper = exponent >> (bits - 8)
    marks = bytes(byte for byte in range(256) if byte & upper == upper)
    return _Type(bits * numbers, bits // 8, marks, exponent)


_TYPES = {
    "F64": _float(64, 0x7FF0 << 48),
    "F32": _float(32, 0x7F80 << 16),
    "C64": _float(32, 0x7F80 << 16, numbers=2),
    "F16": _float(16, 0x7C00),
    "BF16": _float(16, 0x7F80),
    "F8_E5M2": _float(8, 0x7C),
    "F8_E4M3": _float(8, 0x7F),
    "F8_E8M0": _float(8, 0xFF),
    "F8_E5M2FNUZ": _Type(8, marks=b"\x80"),
    "F8_E4M3FNUZ": _Type(8, marks=b"\x80"),
    "F4": _Type(4),
    **{name: _Type(6) for name in ("F6_E2M3", "F6_E3M2")},
    **{name: _Type(8) for name in ("BOOL", "I8", "U8")},
    **{name: _Type(16) for name in ("I16", "U16")},
    **{name: _Type(32) for name in ("I32", "U32")},
    **{name: _Type(64) for name in ("I64", "U64")},
}


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    type: _Type
    size: int
    """Size in bytes."""


@dataclass(frozen=True, slots=True)
class Header:
    shapes: dict[str, list[int]]
    """Shape of each tensor, keyed by name."""
    adapter_config: str | None
    """JSON text of PEFT's adapter_config.json; None for weights of a whole model."""
    tensors: tuple[_Tensor, ...]
    """Tensors in the order in which their values follow the header."""

    @property
    def kind(self) -> str:
        """Digest of everything but the values."""
        text = orjson.dumps([self.shapes, self.adapter_config], option=orjson.OPT_SORT_KEYS)
        return sha256(text).hexdigest()[:16]

    @property
    def is_adapter(self) -> bool:
        return self.adapter_config is not None


class TensorCheck:
    """The check of one file, fed with its bytes in order. Methods raise `WeightsRejected`."""

    def __init__(self) -> None:
        self._header: Header | None = None
        self._rest = b""
        """Bytes of the header, or of a number, whose end has not come yet."""
        self._index = 0
        self._checked = 0
        """Bytes of the tensor at `_index` that have been checked."""

    def add(self, piece: bytes | bytearray) -> None:
        data = self._rest + piece
        if self._header is None:
            size = 8 + _header_size(data)
            if len(data) < size:
                self._rest = data
                return
            self._header = _header(data[8:size])
            data = data[size:]
        self._rest = self._check(self._header.tensors, data)

    def _check(self, tensors: tuple[_Tensor, ...], data: bytes) -> bytes:
        """Returns the bytes of a number that is cut."""
        start = 0
        while start < len(data):
            if self._index == len(tensors):
                raise _broken("it goes on after its last tensor")
            tensor = tensors[self._index]
            stop = min(len(data), start + tensor.size - self._checked)
            stop -= (stop - start) % tensor.type.width
            if stop == start:
                return data[start:]
            if not _is_finite(tensor.type, data, start, stop):
                message = f"the weights are broken: {tensor.name!r} holds NaN or infinity"
                raise WeightsRejected(message, hint=BROKEN)
            self._checked += stop - start
            start = stop
            if self._checked == tensor.size:
                self._index, self._checked = self._index + 1, 0
        return b""

    def end(self) -> Header:
        """Returns the header of the whole file."""
        if self._header is None or self._index < len(self._header.tensors):
            raise _broken("it is cut short")
        return self._header


def _is_finite(kind: _Type, data: bytes, start: int, stop: int) -> bool:
    upper = data[start + kind.width - 1 : stop : kind.width]
    if not any(mark in upper for mark in kind.marks):
        return True
    if kind.is_told_by_marks:
        return False
    places = range(start, stop, kind.width)  # slow, but sound weights have no marks
    numbers = (int.from_bytes(data[one : one + kind.width], "little") for one in places)
    return all(number & kind.exponent != kind.exponent for number in numbers)


def check(path: Path) -> Header:
    """Reads the whole file. Raises `WeightsRejected`."""
    checked = TensorCheck()
    try:
        with path.open("rb") as file:
            while piece := file.read(READ_BYTES):
                checked.add(piece)
            return checked.end()
    except OSError as error:
        raise unreadable(path, error) from error
    except WeightsRejected as error:
        raise WeightsRejected(f"{path.name}: {error.message}", hint=error.hint) from None


def read(path: Path) -> Header:
    """Reads the header alone. Raises `WeightsRejected` if the file is not complete: vLLM would
    notice only after it has lost its old weights."""
    try:
        with path.open("rb") as file:
            size = _header_size(file.read(8))
            header = _header(file.read(size))
        if path.stat().st_size != 8 + size + sum(one.size for one in header.tensors):
            raise _broken("its length is not that of its tensors")
    except OSError as error:
        raise unreadable(path, error) from error
    return header


def unreadable(path: Path, error: OSError) -> BackendRejected:
    return BackendRejected(
        f"the weights in {path} cannot be read: {error.strerror}", hint="push weights again"
    )


def _broken(problem: str) -> WeightsRejected:
    message = f"the weights are not a complete safetensors file: {problem}"
    return WeightsRejected(message, hint="push the weights again")


def _header_size(data: bytes) -> int:
    """Returns the size that the first 8 bytes give; 0 while there are fewer."""
    size = int.from_bytes(data[:8], "little")
    if len(data) >= 8 and not 2 <= size <= MAX_HEADER_BYTES:
        raise _broken(f"its header has {size} bytes")
    return size if len(data) >= 8 else 0


def _header(text: bytes) -> Header:
    try:
        entries = orjson.loads(text)
        config = entries.pop("__metadata__", {}).get(ADAPTER_CONFIG)
        shapes = {name: entry["shape"] for name, entry in entries.items()}
        placed = sorted((*entry["data_offsets"], name) for name, entry in entries.items())
        tensors = [_Tensor(name, _TYPES[entries[name]["dtype"]], e - b) for b, e, name in placed]
    except KeyError as error:
        raise _broken(f"its header has no or an unknown {error.args[0]!r}") from None
    except (ValueError, TypeError, AttributeError):
        raise _broken("its header cannot be read") from None
    if not tensors:
        raise _broken("it has no tensors")
    end = 0
    for tensor, (begin, stop, name) in zip(tensors, placed, strict=True):
        fits = type(stop) is int and 8 * tensor.size == _bits(shapes[name], tensor.type)
        if begin != end or not fits:
            raise _broken(f"offsets or shape of {name!r} are wrong")
        end = stop
    return Header(shapes, config, tuple(one for one in tensors if one.size))


def _bits(shape: Any, kind: _Type) -> int:
    """Returns the size of a tensor in bits; -1 for what is no shape."""
    if type(shape) is not list or any(type(one) is not int or one < 0 for one in shape):
        return -1
    return math.prod(shape) * kind.bits
