"""Differences of two files of equal size, for weights of which a training step changes few bits.

A difference is the SHA-256 digest of the new file and, for each block that has changed, the XOR of
both files' bytes there, compressed. Bits are compared, not numbers, so that NaN and -0.0 come out
as they went in. Knows nothing of tensors, and decides nothing.
"""

import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from hashlib import file_digest, sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np

BLOCK_BYTES = 2**20
WORKERS = min(4, os.cpu_count() or 1)
_RECORD = struct.Struct("<QI")
"""Number of a block, and the size of its compressed XOR in bytes."""
_DIGEST_BYTES = 32


class BrokenDifference(ValueError):
    """The bytes are no difference, or one from another base."""


def write(base: Path, new: Path, target: Path) -> str | None:
    """Writes the difference of `new` from `base` to the new file `target`. Returns the SHA-256 of
    `new` in hexadecimal digits; None if the two have different sizes or the difference is not
    smaller than `new`: `target` is then of no use. Raises `OSError`."""
    size = new.stat().st_size
    if base.stat().st_size != size:
        return None
    with (
        base.open("rb") as old,
        new.open("rb") as changed,
        target.open("xb") as file,
        ThreadPoolExecutor(WORKERS) as workers,
    ):
        digest = workers.submit(_digest_of, new)
        file.write(bytes(_DIGEST_BYTES))
        step = WORKERS * BLOCK_BYTES  # so that few blocks are in memory
        for start in range(0, size, step):
            starts = range(start, min(start + step, size), BLOCK_BYTES)
            file.writelines(workers.map(lambda at: _record(old, changed, at), starts))
            if file.tell() >= size:
                return None
        file.seek(0)
        file.write(digest.result())
    return digest.result().hex()


def _digest_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file_digest(file, sha256).digest()


def _record(old: BinaryIO, changed: BinaryIO, start: int) -> bytes:
    """Returns the record of the block at `start`; b"" if it has not changed."""
    before, after = (os.pread(one.fileno(), BLOCK_BYTES, start) for one in (old, changed))
    if before == after:
        return b""
    # The XOR is runs of zeros: looking for runs alone is faster, and what is left is smaller.
    packing = zlib.compressobj(1, strategy=zlib.Z_RLE)
    packed = packing.compress(_xor(before, after)) + packing.flush()
    return _RECORD.pack(start // BLOCK_BYTES, len(packed)) + packed


def apply(base: BinaryIO, difference: BinaryIO, target: BinaryIO) -> str:
    """Writes the file whose difference from `base` is given to `target`, which is empty. Returns
    its SHA-256 in hexadecimal digits. Raises `BrokenDifference` and `OSError`; what `target` then
    has is of no use."""
    wanted, digest = difference.read(_DIGEST_BYTES), sha256()
    number, change = _next(difference)
    index = 0
    with ThreadPoolExecutor(1) as hashing:  # hashing takes as long as all else
        hashed = hashing.submit(bytes)
        while block := os.pread(base.fileno(), BLOCK_BYTES, index * BLOCK_BYTES):
            if index == number:
                block = _xor(block, change)
                number, change = _next(difference)
            hashed.result()
            hashed = hashing.submit(digest.update, block)  # type: ignore[arg-type]
            target.write(block)
            index += 1
    if number is not None or digest.digest() != wanted:
        raise BrokenDifference("the difference leads to other bytes than it says")
    return digest.hexdigest()


def _next(difference: BinaryIO) -> tuple[int | None, bytes]:
    """Returns number and XOR of the next block that has changed; None at the end."""
    head = difference.read(_RECORD.size)
    if not head:
        return None, b""
    try:
        number, size = _RECORD.unpack(head)
        # A broken size or text must not fill the memory.
        packed = difference.read(min(size, 2 * BLOCK_BYTES))
        return number, zlib.decompressobj().decompress(packed, BLOCK_BYTES)
    except (struct.error, zlib.error) as error:
        raise BrokenDifference(f"the difference cannot be read: {error}") from None


def _xor(one: bytes, other: bytes) -> bytes:
    """Raises `BrokenDifference` for different lengths."""
    if len(one) != len(other):
        raise BrokenDifference("the difference is not one from this base")
    return (np.frombuffer(one, np.uint8) ^ np.frombuffer(other, np.uint8)).tobytes()
