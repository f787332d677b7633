"""Weights as the bytes of one safetensors file, made piece by piece: to be sent, or written by
several threads. Knows nothing of the weights' origin and receivers.
"""

import json
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch

PIECE_ELEMENTS = 2**22
WRITERS = 4
"""Threads that write one file."""
_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


class Tensors(Protocol):
    """Weights by name. Iteration computes or gathers each, in the order of `tensors`."""

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]: ...

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]: ...


@dataclass(frozen=True, slots=True)
class _Entry:
    """Place of one tensor in the file."""

    name: str
    dtype: torch.dtype
    shape: list[int]
    start: int
    """Offset of its first byte after the header."""

    @property
    def end(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize


class SafetensorsFile:
    """The bytes of a safetensors file; needs no second copy of the weights.

    `dtype`: type that the engines compute in. Matrices of a wider type are cast to it. Vectors are
    not: they are small, and some engines keep fp32 vectors. `metadata`: texts in the file's header.
    Raises `TypeError` for weights that are not floating point.
    """

    def __init__(
        self,
        weights: Tensors,
        dtype: torch.dtype | None = None,
        metadata: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._weights = weights
        self._entries = list(_entries(weights.tensors, dtype))
        self._header = _header(self._entries, metadata)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self._header) + (self._entries[-1].end if self._entries else 0)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._header
        for entry, weight in self._read():
            yield from _pieces(weight, entry.dtype)

    def write(self, path: Path) -> None:
        """Writes a new file in several threads: casts and copies release the GIL. Leaves no file
        behind if it fails."""
        with path.open("xb", buffering=0) as file, ThreadPoolExecutor(WRITERS) as writers:
            try:
                file.write(self._header)
                inflight: deque[Future[None]] = deque()
                for entry, weight in self._read():
                    inflight.append(writers.submit(self._write, file.fileno(), entry, weight))
                    if len(inflight) > WRITERS:  # so that few weights are in memory
                        inflight.popleft().result()
                for one in inflight:
                    one.result()
            except BaseException:
                writers.shutdown(cancel_futures=True)
                path.unlink()
                raise

    def _read(self) -> Iterator[tuple[_Entry, torch.Tensor]]:
        for entry, (_, weight) in zip(self._entries, self._weights, strict=True):
            yield entry, weight.detach()

    def _write(self, file: int, entry: _Entry, weight: torch.Tensor) -> None:
        at = len(self._header) + entry.start
        for piece in _pieces(weight, entry.dtype):
            left = piece
            while left:
                left = left[os.pwrite(file, left, at + len(piece) - len(left)) :]
            at += len(piece)


def _pieces(weight: torch.Tensor, dtype: torch.dtype) -> Iterator[memoryview]:
    flat = weight.reshape(-1)
    for start in range(0, len(flat), PIECE_ELEMENTS):
        part = flat[start : start + PIECE_ELEMENTS]
        yield part.to(dtype).cpu().view(torch.uint8).numpy().data


def wire_dtype(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Returns the type in which `tensor` travels to engines that compute in `dtype`."""
    is_wider = dtype is not None and tensor.ndim > 1 and dtype.itemsize < tensor.dtype.itemsize
    return dtype if dtype is not None and is_wider else tensor.dtype


def _entries(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> Iterator[_Entry]:
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPE_NAMES:
            raise TypeError(
                f"weight {name!r} is {tensor.dtype}, which engines do not load: "
                "train an unquantised model, or update the engines yourself under `weights='none'`"
            )
        entry = _Entry(name, wire_dtype(tensor, dtype), list(tensor.shape), end)
        end = entry.end
        yield entry


def _header(entries: Sequence[_Entry], metadata: Mapping[str, str]) -> bytes:
    fields: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for entry in entries:
        fields[entry.name] = {
            "dtype": _DTYPE_NAMES[entry.dtype],
            "shape": entry.shape,
            "data_offsets": [entry.start, entry.end],
        }
    text = json.dumps(fields).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
