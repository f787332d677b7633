"""The ipython tool: one kernel, started by the first call; one call at a time.

Code that is cancelled or not done by its deadline is interrupted; when that does not help, the
kernel is killed. A kernel that is gone is replaced by a new one at the next call, and a result says
that its variables are lost. Output that comes between two calls belongs to the next result.
"""

import signal
import time
from collections import deque
from functools import partial
from typing import Any

from .kernel import Kernel
from .loop import Loop
from .notes import CANCELLED, TIMED_OUT, stop_note, with_notes
from .output import HeadTail
from .request import Request

GRACE_S = 5.0
"""Seconds an interrupt may take to end the code. They are many because a killed kernel loses its
variables, and a machine may be busy."""


class IPythonTool:
    def __init__(self, loop: Loop, *, kernel: dict[str, Any] | None, output_bytes: int) -> None:
        """`kernel` has the arguments `python` and `packages` of `Kernel`; None means no kernel."""
        self._loop = loop
        self._installation = kernel
        self._output_bytes = output_bytes
        self._output = HeadTail(output_bytes)
        self._waiting: deque[Request] = deque()
        self._request: Request | None = None
        self._ending = ""
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
        self._waiting.append(request)
        self._loop.set_timer(request, request.deadline, partial(self._stop, request, TIMED_OUT))
        request.on_cancel(partial(self._stop, request, CANCELLED))
        self._next()

    def _next(self) -> None:
        if self._request is not None or not self._waiting:
            return
        self._request = self._waiting.popleft()
        self._ending = ""
        restart = self._request.arguments.get("restart", False)
        if self._kernel is not None and (restart or self._kernel.is_ending):
            self._restarting = True
            self._kernel.kill()  # `_kernel_exited` continues
        else:
            self._run(self._request)

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
        return Kernel(
            self._loop,
            **self._installation,
            on_output=self._append,
            on_reply=self._replied,
            on_exit=self._kernel_exited,
        )

    def _append(self, data: bytes) -> None:
        self._output.append(data)
        if self._request is not None:
            self._request.stream(data)

    def _stop(self, request: Request, reason: str) -> None:
        """Begins to end the call, which is running or waiting."""
        if request is not self._request:
            self._waiting.remove(request)
            self._loop.clear_timer(request)
            note = stop_note(reason, request.timeout_s, awaited="the kernel")
            data = _data("interrupted", timed_out=reason == TIMED_OUT)
            request.reply_tool(with_notes("", [note]), is_error=True, data=data)
        elif not self._ending:
            self._ending = reason
            self._interrupt()

    def _interrupt(self) -> None:
        assert self._kernel is not None
        self._kernel.interrupt()
        self._loop.set_timer(self._request, time.monotonic() + GRACE_S, self._kernel.kill)

    def _replied(self, reply: dict[str, Any]) -> None:
        if self._request is None:  # the user's code made it up
            return
        status = "ok" if reply["status"] == "ok" else "error"
        self._finish("interrupted" if self._ending else status, reply)

    def _kernel_exited(self, code: int) -> None:
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
        request, output = self._request, self._output
        assert request is not None
        self._loop.clear_timer(request)
        reply = reply or {}
        data = _data(
            status,
            timed_out=self._ending == TIMED_OUT,
            truncated=output.dropped_bytes > 0,
            execution_count=reply.get("execution_count"),
            images=reply.get("images"),
        )
        request.reply_tool(self._text(request), is_error=status != "ok", data=data)
        self._output = HeadTail(self._output_bytes)
        self._request = None
        self._died = ""
        self._next()

    def _text(self, request: Request) -> str:
        notes = [stop_note(self._ending, request.timeout_s)] if self._ending else []
        if self._died:
            notes.append(f"the kernel {self._died}; variables and imports of before are lost")
        return with_notes(self._output.text(), notes)


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
