"""The bash tool: one shell, one command at a time, whatever the commands do to it.

A command that is cancelled, or not done by its deadline, is interrupted, then terminated, then
killed; when none of that brings the shell back, the shell itself is killed. A shell that is gone is
replaced by a new one in the working directory, and the result says so. Output that comes between
two commands is read at once, so that background jobs never block on it, and belongs to the next
result.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from functools import partial

from .output import HeadTail
from .shell import Shell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .call import Call
    from .loop import Loop

ESCALATION = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
GRACE_S = 1.0
"""How long each step of the escalation may take to bring the shell back."""

TIMED_OUT = "timed out"
CANCELLED = "cancelled"


class BashTool:
    def __init__(self, loop: Loop, *, output_bytes: int) -> None:
        self._loop = loop
        self._output_bytes = output_bytes
        self._output = HeadTail(output_bytes)
        self._waiting: deque[Call] = deque()
        self._call: Call | None = None
        self._steps: list[int] = []
        self._ending = ""
        self._restarted = False
        self._shell: Shell | None = self._start_shell()

    def __call__(self, call: Call) -> None:
        command = call.arguments.get("command")
        if not isinstance(command, str) or "\0" in command:
            call.reply_tool("bash needs a `command`: text without NUL", is_error=True)
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
        self._steps = list(ESCALATION)
        try:
            if self._shell is None:
                self._shell = self._new_shell()
        except OSError as error:
            self._output.append(f"no shell could be started: {error}\n".encode())
            self._finish(None)
        else:
            self._shell.run(self._call.arguments["command"])

    def _new_shell(self) -> Shell:
        try:
            return self._start_shell()
        except OSError:
            # No process left to be had. The first of a PID namespace may end all the others.
            if os.getpid() != 1:
                raise
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            self._loop.reap()
            return self._start_shell()

    def _start_shell(self) -> Shell:
        return Shell(
            self._loop,
            on_output=self._append,
            on_done=self._finish,
            on_exit=self._shell_exited,
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
            call.reply_tool(
                f"[{_note(reason, call)}, before the shell was free]",
                is_error=True,
                data=_data(timed_out=reason == TIMED_OUT),
            )
        elif not self._ending:
            self._ending = reason
            self._escalate()

    def _escalate(self) -> None:
        assert self._shell is not None
        if self._steps:
            self._shell.signal_foreground(self._steps.pop(0))
            self._loop.set_timer(self._call, time.monotonic() + GRACE_S, self._escalate)
        else:
            self._shell.kill()

    def _shell_exited(self, code: int) -> None:
        self._shell = None
        self._restarted = True
        self._finish(code)

    def _finish(self, exit_code: int | None) -> None:
        """Answer the command that is running, if one is, and go on to the next."""
        call, output = self._call, self._output
        if call is None:
            return
        self._loop.clear_timer(call)
        if self._ending:
            exit_code = None
        text = self._text(call, exit_code)
        data = _data(
            exit_code,
            timed_out=self._ending == TIMED_OUT,
            truncated=output.dropped_bytes > 0,
            restarted=self._restarted,
        )
        call.reply_tool(text, is_error=exit_code != 0 or self._restarted, data=data)
        self._output = HeadTail(self._output_bytes)
        self._call = None
        self._restarted = False
        self._next()

    def _text(self, call: Call, exit_code: int | None) -> str:
        """The output, and a line for each thing the model should know that is not in it."""
        text = self._output.text()
        notes = []
        if self._ending:
            notes.append(f"[{_note(self._ending, call)}]")
        elif exit_code:
            notes.append(f"[exit code {exit_code}]")
        if self._restarted:
            notes.append("[the shell exited and was restarted]")
        if notes and text:
            notes.insert(0, text.rstrip("\n"))
        return "\n".join(notes) if notes else text


def _note(reason: str, call: Call) -> str:
    return f"{reason} after {call.timeout_s:g} s" if reason == TIMED_OUT else reason


def _data(
    exit_code: int | None = None,
    *,
    timed_out: bool,
    truncated: bool = False,
    restarted: bool = False,
) -> dict[str, Any]:
    return {
        "exit_code": exit_code,
        "timed_out": timed_out,
        "truncated": truncated,
        "restarted": restarted,
    }
