"""The end of all processes of a sandbox but its server, so that its files stand still."""

import os
import signal
import time
from functools import partial

from .request import Request

CHECK_S = 0.002
"""Seconds between checks whether all have ended: the kernel sends no event for that."""


def end_processes(request: Request) -> None:
    """Answers when no other process is left. Shells and kernels are started anew when needed."""
    if os.getpid() != 1:
        request.fail("only a sandbox with processes of its own can end them all")
        return
    _end(request)


def _end(request: Request) -> None:
    try:
        os.kill(-1, signal.SIGKILL)  # all that this process may signal, except itself
    except ProcessLookupError:
        request.reply()
        return
    if time.monotonic() > request.deadline:
        request.fail("processes did not end")
        return
    request.loop.set_timer(request, time.monotonic() + CHECK_S, partial(_end, request))
