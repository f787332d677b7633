"""Worker processes, for work on files that may take long or be made to hang.

Their output reaches the service piece by piece and is never held as a whole. A worker ends with its
work, or at its call's deadline or cancellation. A sandbox at its limit of processes refuses such
work with `EAGAIN`.
"""

import contextlib
import errno
import os
import signal
import traceback
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from .protocol import PART_BYTES
from .request import Request

_BUG = 255


def in_worker(request: Request, work: Callable[[BinaryIO], None]) -> None:
    """Answers `request` with what `work` writes, or the errno of the `OSError` that it raises."""
    read, write = os.pipe()
    try:
        pid = os.fork()
    except BaseException:
        os.close(read)
        raise
    else:
        if pid == 0:
            _work(write, work)
    finally:
        os.close(write)
    os.set_blocking(read, False)
    loop = request.loop
    kill = partial(os.kill, pid, signal.SIGKILL)
    loop.watch(read, partial(_pass_on, request, read))
    loop.on_exit(pid, partial(_ended, request, read))
    loop.set_timer(request, request.deadline, kill)
    request.on_cancel(kill)


def _work(write: int, work: Callable[[BinaryIO], None]) -> None:
    """Works and exits, after closing the service's connection, which is not this process's."""
    code = _BUG
    try:
        os.close(0)
        with open(write, "wb", PART_BYTES) as out:
            work(out)
        code = 0
    except OSError as error:
        code = error.errno or errno.EIO
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _pass_on(request: Request, read: int) -> None:
    with contextlib.suppress(BlockingIOError):
        data = os.read(read, PART_BYTES)
        if data:
            request.send_part(data)
        else:
            request.loop.unwatch(read)


def _ended(request: Request, read: int, code: int) -> None:
    while True:
        data = os.read(read, PART_BYTES)
        if not data:
            break
        request.send_part(data)
    request.loop.clear_timer(request)
    request.loop.unwatch(read)
    os.close(read)
    if code == 0:
        request.reply()
    elif code == 128 + signal.SIGKILL:
        request.fail(f"not done within {request.timeout_s:g} s")
    elif code == _BUG:
        request.fail("the worker failed: see the messages of the server")
    else:
        request.fail(os.strerror(code), code)
