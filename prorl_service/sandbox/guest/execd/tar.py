"""A directory as an uncompressed tar, and back. A worker does it, so that a tree cannot do harm.

A snapshot has directories, regular files and symbolic links: their names below the directory, modes
and modification times. Links are kept, never followed; sockets, FIFOs and devices are left out, and
so are files that are removed meanwhile. Names are sorted, so that equal trees give equal tars.
"""

import errno
import io
import os
import stat
import tarfile
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from .files import NEVER_WAIT, checked_path, open_regular
from .request import Request
from .worker import in_worker

MAX_DEPTH = 200
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | NEVER_WAIT
_FILE = os.O_RDONLY | os.O_NOFOLLOW


def snapshot(request: Request, max_bytes: int) -> None:
    root = os.open(checked_path(request.arguments["path"]), _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        in_worker(request, partial(_snapshot, root, max_bytes))
    finally:
        os.close(root)


def restore(request: Request) -> None:
    path = checked_path(request.arguments["path"])
    os.makedirs(path, exist_ok=True)
    in_worker(request, partial(_restore, path, request.payload))


def _snapshot(root: int, max_bytes: int, out: BinaryIO) -> None:
    with tarfile.open(fileobj=Bounded(out, max_bytes), mode="w|") as tar:  # type: ignore[call-overload]
        TreeSaving(tar).add_directory(os.dup(root))


def _restore(path: str, content: bytes, out: BinaryIO) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise OSError(errno.ENOTSUP, "needs a Python with extraction filters")
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            tar.extractall(path, filter="data")
    except tarfile.FilterError as error:
        raise OSError(errno.EPERM, str(error)) from error
    except tarfile.TarError as error:
        raise OSError(errno.EINVAL, str(error)) from error


class TreeSaving:
    """Writes trees of directories, regular files and symbolic links into a tar."""

    skipped: tuple[type[OSError], ...] = (FileNotFoundError,)
    """Errors for which an entry is left out."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def add_directory(self, directory: int, prefix: str = "", depth: int = MAX_DEPTH) -> None:
        """Adds what a directory holds. Closes it."""
        try:
            if not depth:
                raise OSError(errno.ELOOP, "nested too deeply")
            with os.scandir(directory) as entries:
                names = sorted(entry.name for entry in entries)
            self._begin(directory, prefix)
            for name in names:
                with suppress(*self.skipped):
                    self._add(directory, name, prefix, depth)
        finally:
            os.close(directory)

    def _begin(self, directory: int, prefix: str) -> None:
        """Adds what marks the directory itself."""

    def _add(self, directory: int, name: str, prefix: str, depth: int) -> None:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            self._add_other(status, directory, name, prefix)
            return
        inner = os.open(name, _DIRECTORY, dir_fd=directory)
        add_entry(self._tar, directory, name, prefix)
        self.add_directory(inner, f"{prefix}{name}/", depth - 1)

    def _add_other(self, status: os.stat_result, directory: int, name: str, prefix: str) -> None:
        add_entry(self._tar, directory, name, prefix)


def add_entry(tar: tarfile.TarFile, directory: int, name: str, prefix: str) -> None:
    """Adds a directory without what it holds, a link, or a regular file; nothing else."""
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    info = tar.tarinfo(prefix + name)
    info.mode = stat.S_IMODE(status.st_mode)
    info.mtime = int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        info.type = b"5"
        tar.addfile(info)
    elif stat.S_ISLNK(status.st_mode):
        info.type = b"2"
        info.linkname = os.readlink(name, dir_fd=directory)
        tar.addfile(info)
    elif stat.S_ISREG(status.st_mode):
        with open(open_regular(name, _FILE, directory), "rb") as file:
            info.size = os.fstat(file.fileno()).st_size
            tar.addfile(info, _PaddedFile(file))  # type: ignore[arg-type]


class Bounded:
    def __init__(self, out: BinaryIO, max_bytes: int) -> None:
        self._out = out
        self._left = max_bytes

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise OSError(errno.EFBIG, "too large")
        return self._out.write(data)


class _PaddedFile:
    """Pads a file that shrinks while it is read to the length in its header."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size).ljust(size, b"\0")
