"""Whole files to and from the sandbox, without a shell. Relative to the working directory."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .call import Call

# A FIFO must not block the server, nor a terminal become its own.
_NEVER_WAIT = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def upload(call: Call) -> None:
    path = call.arguments["path"]
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(_open_regular(path, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.truncate()
        file.write(call.payload)
    call.reply()


def download(call: Call, max_bytes: int) -> None:
    with open(_open_regular(call.arguments["path"], os.O_RDONLY), "rb") as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes")
        call.reply(file.read())


def _open_regular(path: str, flags: int) -> int:
    fd = os.open(path, flags | _NEVER_WAIT, 0o666)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "not a regular file")
