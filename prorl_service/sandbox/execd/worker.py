"""Work on files that may take long or be made to hang: done by a process of its own.

What it writes reaches the service piece by piece and is never held as a whole. It ends with its
work, its call's deadline or cancellation. At its limit of processes a sandbox refuses such work
with `EAGAIN`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import traceback
from functools import partial

from .protocol import PART_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from .call import Call

_BUG = 255


def in_worker(call: Call, work: Callable[[BinaryIO], None]) -> None:
    """Answer `call` with what `work` writes, or with the errno of the `OSError` that it raises."""
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
    loop = call.loop
    kill = partial(os.kill, pid, signal.SIGKILL)
    loop.watch(read, partial(_pass_on, call, read))
    loop.on_exit(pid, partial(_ended, call, read))
    loop.set_timer(call, call.deadline, kill)
    call.on_cancel(kill)


def _work(write: int, work: Callable[[BinaryIO], None]) -> None:
    """Never returns. The service's connection is not this process's."""
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


def _pass_on(call: Call, read: int) -> None:
    with contextlib.suppress(BlockingIOError):
        data = os.read(read, PART_BYTES)
        if data:
            call.send_part(data)
        else:
            call.loop.unwatch(read)


def _ended(call: Call, read: int, code: int) -> None:
    while True:
        data = os.read(read, PART_BYTES)
        if not data:
            break
        call.send_part(data)
    call.loop.clear_timer(call)
    call.loop.unwatch(read)
    os.close(read)
    if code == 0:
        call.reply()
    elif code == 128 + signal.SIGKILL:
        call.fail(f"not done within {call.timeout_s:g} s")
    elif code == _BUG:
        call.fail("the worker failed, see what the server wrote")
    else:
        call.fail(os.strerror(code), code)
