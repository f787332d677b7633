"""Whole files to and from the sandbox, without a shell. Relative paths start in the workdir.

Small files are copied immediately, which takes less than a millisecond; others by a worker.
"""

import errno
import os
import stat
from functools import cache, partial
from io import FileIO
from typing import BinaryIO

from . import linux
from .request import Request
from .worker import in_worker

INLINE_BYTES = 1 << 20
MAX_PARTS = 500
"""Maximum parts of a path: fewer than Python's limit on nested calls."""
_COPY_BYTES = 1 << 18

_MODE = 0o666

# A FIFO must not block the server, and a terminal must not become its own.
NEVER_WAIT = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def checked_path(path: str) -> str:
    """Returns `path`. Raises `OSError` for an impossible one, where Python has other errors."""
    if path.count("/") > MAX_PARTS:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    try:
        possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:  # half of a surrogate pair
        possible = False
    if not possible:
        raise OSError(errno.EINVAL, "not a possible path")
    return path


def upload(request: Request) -> None:
    path, content = checked_path(request.arguments["path"]), request.payload
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(open_regular(path, os.O_WRONLY | os.O_CREAT), "wb", 0) as file:
        if len(content) <= INLINE_BYTES:
            _write(file, content)
            request.reply()
        else:
            in_worker(request, lambda out: _write(file, content))


def _write(file: FileIO, content: bytes) -> None:
    file.truncate()
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]


def download(request: Request, max_bytes: int) -> None:
    path = checked_path(request.arguments["path"])
    max_bytes = min(max_bytes, request.arguments.get("max_bytes", max_bytes))
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        # Files of /proc have any length, but report none.
        content = file.read(min(max_bytes, INLINE_BYTES) + 1)
        if max(os.fstat(file.fileno()).st_size, len(content)) > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes")
        if len(content) <= INLINE_BYTES:
            request.reply(content)
        else:
            in_worker(request, partial(_read, file, content, max_bytes))


def _read(file: BinaryIO, content: bytes, max_bytes: int, out: BinaryIO) -> None:
    left = max_bytes
    while content:
        left -= len(content)
        if left < 0:
            raise OSError(errno.EFBIG, "too large")
        out.write(content)
        content = file.read(_COPY_BYTES)


def open_regular(path: str, flags: int, directory: int | None = None) -> int:
    """Opens a file without ever blocking. Raises `OSError` unless it is a regular file."""
    return _regular(os.open(path, flags | NEVER_WAIT, _MODE, dir_fd=directory))


def open_stored(path: str, flags: int) -> int:
    """Like `open_regular`, but refuses files of the kernel: process 1 of a sandbox may read and
    write those about itself, on behalf of any caller."""
    fd = linux.open_without_magic(path, flags | NEVER_WAIT, _MODE)
    try:
        refuse_kernels(os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return _regular(fd)


def refuse_kernels(found: os.stat_result) -> None:
    """Raises `OSError` for a file that is not stored anywhere, but made up by the kernel."""
    if found.st_dev in _kernels_devices():
        raise OSError(errno.EPERM, "a file of the kernel: use bash")


@cache  # first called when the sandbox has its own
def _kernels_devices() -> frozenset[int]:
    found = {os.stat(path).st_dev for path in ("/proc", "/sys") if os.path.exists(path)}
    return frozenset(found - {os.stat("/").st_dev})


def _regular(fd: int) -> int:
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "not a regular file")
