"""Runs one program by its arguments. Sent into the sandbox, a tool of its server there.

For what the service itself wants done where a model has worked: no shell of the model's is between,
with its functions, aliases, traps and variables. Nothing that the program says comes back but its
exit code. Runs on the service's own Python.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prorl_service.sandbox.guest.execd.request import Request

DEFAULT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


def tool(request: Request) -> None:
    """`argv`, and `environment`: all of it. Ends with its whole process group at the time-out."""
    null = os.devnull
    pid = os.posix_spawnp(
        request.arguments["argv"][0],
        request.arguments["argv"],
        request.arguments["environment"],
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, null, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, null, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, null, os.O_WRONLY, 0),
        ],
        setsid=True,
        setsigdef=DEFAULT_SIGNALS,
    )
    timed_out = False

    def end() -> None:
        nonlocal timed_out
        timed_out = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def ended(exit_code: int) -> None:
        request.loop.clear_timer(pid)
        data = {"exit_code": None if timed_out else exit_code, "timed_out": timed_out}
        request.reply_tool("", is_error=timed_out or exit_code != 0, data=data)

    request.loop.on_exit(pid, ended)
    request.loop.set_timer(pid, request.deadline, end)
    request.on_cancel(end)
