"""The ipython tool: one kernel, started by the first call; one call at a time.

Code that is cancelled or not done by its deadline is interrupted; when that does not help, the
kernel is killed. A kernel that is gone is replaced by a new one at the next call, and a result says
that its variables are lost. Output that comes between two calls belongs to the next result.
"""

import signal
import time
from typing import Any

from .calls import TIMED_OUT, OneAtATime
from .kernel import Kernel
from .loop import Loop
from .output import with_notes
from .request import Request

GRACE_S = 5.0
"""Seconds an interrupt may take to end the code. They are many because a killed kernel loses its
variables, and a machine may be busy."""


class IPythonTool(OneAtATime):
    awaited = "the kernel"

    def __init__(self, loop: Loop, *, kernel: dict[str, Any] | None, output_bytes: int) -> None:
        """`kernel` has the arguments `python` and `packages` of `Kernel`; None means no kernel."""
        super().__init__(loop, output_bytes=output_bytes)
        self._installation = kernel
        self._restarting = False
        self._died = ""
        self._kernel: Kernel | None = None

    def __call__(self, request: Request) -> None:
        problem = _problem(request.arguments)
        if self._installation is None:
            problem = "there is no IPython in this sandbox"
        if problem:
            request.reply_tool(problem, is_error=True)
            return
        self._accept(request)

    def _begin(self, request: Request) -> None:
        restart = request.arguments.get("restart", False)
        if self._kernel is not None and (restart or self._kernel.is_ending):
            self._restarting = True
            self._kernel.kill()  # `kernel_exited` continues
        else:
            self._run(request)

    def _run(self, request: Request) -> None:
        try:
            if self._kernel is None:
                self._kernel = self._start_kernel()
        except OSError as error:
            self._output.append(f"no kernel could be started: {error}\n".encode())
            self._finish("restarted")
        else:
            self._kernel.run(request.arguments["code"])

    def _start_kernel(self) -> Kernel:
        assert self._installation is not None
        return Kernel(self._loop, self, **self._installation)

    def _unstarted_data(self, *, timed_out: bool) -> dict[str, Any]:
        return _data("interrupted", timed_out=timed_out)

    def _interrupt(self) -> None:
        assert self._kernel is not None
        self._kernel.interrupt()
        self._loop.set_timer(self._request, time.monotonic() + GRACE_S, self._kernel.kill)

    def replied(self, reply: dict[str, Any]) -> None:
        if self._request is None:  # the user's code made it up
            return
        status = "ok" if reply["status"] == "ok" else "error"
        self._finish("interrupted" if self._ending else status, reply)

    def kernel_exited(self, code: int) -> None:
        self._kernel = None
        request, restarting, self._restarting = self._request, self._restarting, False
        if not (restarting and request is not None and request.arguments.get("restart")):
            self._died = _death(code)
        if request is not None and restarting and not self._ending:
            self._run(request)
        elif request is not None:
            self._finish("restarted")

    def _finish(self, status: str, reply: dict[str, Any] | None = None) -> None:
        """Answers the running call, and continues with the next."""
        request, output, notes = self._finished()
        if self._died:
            notes.append(f"the kernel {self._died}; variables and imports of before are lost")
        self._died = ""
        reply = reply or {}
        data = _data(
            status,
            timed_out=self._ending == TIMED_OUT,
            truncated=output.dropped_bytes > 0,
            execution_count=reply.get("execution_count"),
            images=reply.get("images"),
        )
        text = with_notes(output.text(), notes)
        request.reply_tool(text, is_error=status != "ok", data=data)
        self._next()


def _problem(arguments: dict[str, Any]) -> str:
    if not isinstance(arguments.get("code"), str):
        return "ipython needs `code`: text"
    if not isinstance(arguments.get("restart", False), bool):
        return "`restart` must be true or false"
    return ""


def _death(code: int) -> str:
    if code <= 128:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"was ended by signal {code - 128}"


def _data(
    status: str,
    *,
    timed_out: bool,
    truncated: bool = False,
    execution_count: int | None = None,
    images: list[dict[str, str]] | None = None,
) -> dict[str, Any]:
    return {
        "status": status,
        "execution_count": execution_count,
        "timed_out": timed_out,
        "truncated": truncated,
        "images": images or [],
    }
