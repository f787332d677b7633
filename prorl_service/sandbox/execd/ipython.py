"""The ipython tool: one kernel, started by the first call; one call at a time.

Code that is cancelled or not done by its deadline is interrupted; when that does not help, the
kernel is killed. A kernel that is gone is replaced by a new one at the next call, and a result says
that its variables are lost. Output that comes between two calls belongs to the next result.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from functools import partial

from .kernel import Kernel
from .output import HeadTail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .call import Call
    from .loop import Loop

GRACE_S = 5.0
"""Seconds an interrupt may take to end the code. They are many, for a kernel that is killed loses
its variables, and a machine may be busy."""

TIMED_OUT = "timed out"
CANCELLED = "cancelled"


class IPythonTool:
    def __init__(self, loop: Loop, *, kernel: dict[str, Any] | None, output_bytes: int) -> None:
        """`kernel` are the arguments `python` and `packages` of `Kernel`; None: there is none."""
        self._loop = loop
        self._installation = kernel
        self._output_bytes = output_bytes
        self._output = HeadTail(output_bytes)
        self._waiting: deque[Call] = deque()
        self._call: Call | None = None
        self._ending = ""
        self._restarting = False
        self._died = ""
        self._kernel: Kernel | None = None

    def __call__(self, call: Call) -> None:
        problem = _problem(call.arguments)
        if self._installation is None:
            problem = "there is no IPython in this sandbox"
        if problem:
            call.reply_tool(problem, is_error=True)
            return
        self._waiting.append(call)
        self._loop.set_timer(call, call.deadline, partial(self._stop, call, TIMED_OUT))
        call.on_cancel(partial(self._stop, call, CANCELLED))
        self._next()

    def _next(self) -> None:
        if self._call is not None or not self._waiting:
            return
        self._call = self._waiting.popleft()
        self._ending = ""
        restart = self._call.arguments.get("restart", False)
        if self._kernel is not None and (restart or self._kernel.is_ending):
            self._restarting = True
            self._kernel.kill()  # goes on when it has ended
        else:
            self._run(self._call)

    def _run(self, call: Call) -> None:
        try:
            if self._kernel is None:
                self._kernel = self._start_kernel()
        except OSError as error:
            self._output.append(f"no kernel could be started: {error}\n".encode())
            self._finish("restarted")
        else:
            self._kernel.run(call.arguments["code"])

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
        if self._call is not None:
            self._call.stream(data)

    def _stop(self, call: Call, reason: str) -> None:
        """Begin to end the call, which is running or waiting."""
        if call is not self._call:
            self._waiting.remove(call)
            self._loop.clear_timer(call)
            note = f"[{_note(reason, call)}, before the kernel was free]"
            data = _data("interrupted", timed_out=reason == TIMED_OUT)
            call.reply_tool(note, is_error=True, data=data)
        elif not self._ending:
            self._ending = reason
            self._interrupt()

    def _interrupt(self) -> None:
        assert self._kernel is not None
        self._kernel.interrupt()
        self._loop.set_timer(self._call, time.monotonic() + GRACE_S, self._kernel.kill)

    def _replied(self, reply: dict[str, Any]) -> None:
        if self._call is None:  # what runs inside made it up
            return
        status = "ok" if reply["status"] == "ok" else "error"
        self._finish("interrupted" if self._ending else status, reply)

    def _kernel_exited(self, code: int) -> None:
        self._kernel = None
        call, restarting, self._restarting = self._call, self._restarting, False
        if not (restarting and call is not None and call.arguments.get("restart")):
            self._died = _death(code)
        if call is not None and restarting and not self._ending:
            self._run(call)
        elif call is not None:
            self._finish("restarted")

    def _finish(self, status: str, reply: dict[str, Any] | None = None) -> None:
        """Answer the call that is running, and go on to the next."""
        call, output = self._call, self._output
        assert call is not None
        self._loop.clear_timer(call)
        reply = reply or {}
        data = _data(
            status,
            timed_out=self._ending == TIMED_OUT,
            truncated=output.dropped_bytes > 0,
            execution_count=reply.get("execution_count"),
            images=reply.get("images"),
        )
        call.reply_tool(self._text(call), is_error=status != "ok", data=data)
        self._output = HeadTail(self._output_bytes)
        self._call = None
        self._died = ""
        self._next()

    def _text(self, call: Call) -> str:
        """The output, and a line for each thing the model should know that is not in it."""
        text = self._output.text()
        notes = []
        if self._ending:
            notes.append(f"[{_note(self._ending, call)}]")
        if self._died:
            notes.append(f"[the kernel {self._died}; variables and imports of before are lost]")
        if notes and text:
            notes.insert(0, text.rstrip("\n"))
        return "\n".join(notes) if notes else text


def _problem(arguments: dict[str, Any]) -> str:
    if not isinstance(arguments.get("code"), str):
        return "ipython needs `code`: text"
    if not isinstance(arguments.get("restart", False), bool):
        return "`restart` must be true or false"
    return ""


def _note(reason: str, call: Call) -> str:
    return f"{reason} after {call.timeout_s:g} s" if reason == TIMED_OUT else reason


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
