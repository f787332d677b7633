"""A tool that runs one program by its arguments. Sent to the server in the sandbox as source.

The service uses it where a model has worked, to bypass the model's shell with its functions,
aliases, traps and variables. Only the program's exit code comes back. Runs on the service's own
Python.
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
    """Runs `argv` in exactly `environment`; kills its whole process group at the timeout."""
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
