"""The end of all processes of a sandbox but its server, or their rest: files stand still."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial

from .request import Request

CHECK_S = 0.002
"""Seconds between checks whether all have ended or rest: the kernel sends no event for that."""
AT_REST = "TtZX"
"""States of processes that run no more, in /proc."""


def end_processes(request: Request) -> None:
    """Answers when no other process is left. The next call starts the shell or kernel it needs."""
    if _may_signal(request):
        _end(request)


def suspend_processes(request: Request) -> None:
    """Answers when all other processes rest, until `resume_processes`."""
    if _may_signal(request):
        _signal_all(signal.SIGSTOP)
        _wait_for_rest(request)


def resume_processes(request: Request) -> None:
    if _may_signal(request):
        _signal_all(signal.SIGCONT)
        request.reply()


def _may_signal(request: Request) -> bool:
    if os.getpid() == 1:
        return True
    request.fail("only a sandbox with processes of its own can end or suspend them all")
    return False


def _signal_all(number: int) -> bool:
    """Signals all other processes. Returns whether there are any."""
    try:
        os.kill(-1, number)  # all that this process may signal, except itself
    except ProcessLookupError:
        return False
    return True


def _end(request: Request) -> None:
    if not _signal_all(signal.SIGKILL):
        request.reply()
    else:
        _again(request, _end, "processes did not end")


def _wait_for_rest(request: Request) -> None:
    if all(_state(name) in AT_REST for name in os.listdir("/proc") if name.isdigit()):
        request.reply()
    else:
        _again(request, _wait_for_rest, "processes did not come to rest")


def _again(request: Request, check: Callable[[Request], None], problem: str) -> None:
    if time.monotonic() > request.deadline:
        request.fail(problem)
    else:
        request.loop.set_timer(request, time.monotonic() + CHECK_S, partial(check, request))


def _state(pid: str) -> str:
    if pid == "1":
        return "T"
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:  # it has ended meanwhile
        return "X"
