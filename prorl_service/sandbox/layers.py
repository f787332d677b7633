"""A sandbox's written files, kept on the host while no sandbox has them.

A layer is a tar as `execd.layer` makes it. It is hostile: the host never unpacks it, but divides it
into pieces that a sandbox takes.
"""

import io
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import IO

from prorl_service.sandbox.guest.execd.guard import Guard as Guard

IN_MEMORY_BYTES = 1 << 20
PIECE_BYTES = 32 << 20
HEADERS_BYTES = 32 << 10
"""Maximum size of what surrounds a file in a tar: headers with long names, and its end."""


class Layer:
    """A layer in memory, or in a file without a name if it is large. It is gone with the object."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.checksum = 0
        self._file = SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115

    def append(self, part: bytes) -> None:
        self.size_bytes += len(part)
        self.checksum = zlib.crc32(part, self.checksum)
        self._file.write(part)

    @classmethod
    def read_from(cls, file: IO[bytes]) -> "Layer":
        """Blocking."""
        layer = cls()
        while part := file.read(IN_MEMORY_BYTES):
            layer.append(part)
        return layer

    def write_to(self, file: IO[bytes]) -> None:
        """Blocking."""
        self._file.seek(0)
        shutil.copyfileobj(self._file, file)

    def pieces(self, most_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
        """Yields tars of whole entries, in order; only a single file may be larger. Blocking."""
        self._file.seek(0)
        if self.size_bytes <= most_bytes:
            yield self._file.read()
            return
        with tarfile.open(fileobj=self._file, mode="r|") as tar:
            piece = _LayerPiece()
            for entry in tar:
                if piece.size_bytes and piece.size_bytes + entry.size + HEADERS_BYTES > most_bytes:
                    yield piece.end()
                    piece = _LayerPiece()
                piece.add(tar, entry)
            yield piece.end()

    def __del__(self) -> None:
        self._file.close()


class _LayerPiece:
    def __init__(self) -> None:
        self._content = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._content, mode="w|")  # noqa: SIM115

    @property
    def size_bytes(self) -> int:
        return self._content.tell()

    def add(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        self._tar.addfile(entry, tar.extractfile(entry) if entry.isreg() else None)

    def end(self) -> bytes:
        self._tar.close()
        return self._content.getvalue()
