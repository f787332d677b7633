"""The bash tool: one shell, one command at a time, whatever the commands do to it.

A command that is cancelled, or not done by its deadline, is interrupted, then terminated, then
killed; if the shell still does not come back, the shell itself is killed. A shell that is gone is
replaced by a new one in the working directory, and the result says so. Output that comes between
two commands is read immediately, so that background jobs never block on it, and belongs to the next
result.

Between commands the shell is lent to the service, which runs short commands in it by itself and
hands over longer ones: each switch between processes costs as much as a short command.
"""

import contextlib
import os
import signal
import socket
import time
from functools import partial
from typing import Any

from .calls import CANCELLED, TIMED_OUT, OneAtATime
from .command import exit_notes, muted_notes, result_data
from .fd_passing import send_fds
from .loop import Loop
from .output import with_notes
from .request import Request
from .shell import Shell

ESCALATION = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
GRACE_S = 1.0
"""Seconds that each step of the escalation may take to bring the shell back."""

READING_S = 0.001
"""Seconds between checks whether bash has read a command that is to be interrupted immediately, and
of what an interrupted one has left."""


class BashTool(OneAtATime):
    awaited = "the shell"

    def __init__(self, loop: Loop, handover: socket.socket | None, *, output_bytes: int) -> None:
        """`handover` takes the descriptors of a lent shell; None if the shell is never lent."""
        super().__init__(loop, output_bytes=output_bytes)
        self._handover = handover
        self._handed_over: Shell | None = None
        self._lent = False
        self._steps: list[int] = []
        self._settling = False
        self._restarted = False
        self._muted = False
        self._shell: Shell | None = self._start_shell()

    def __call__(self, request: Request) -> None:
        """Takes a command. The payload is what was read while the shell was lent; `nonce` is set if
        the command started then; `elapsed_s` is the part of its time that the service has used."""
        if "nonce" not in request.arguments:
            self._take_back(request.payload)
        command = request.arguments.get("command")
        if not isinstance(command, str) or "\0" in command:
            request.reply_tool("bash needs a `command`: text without NUL", is_error=True)
            return
        self._accept(request, elapsed_s=request.arguments.get("elapsed_s", 0.0))

    def _begin(self, request: Request) -> None:
        self._settling = False
        self._steps = list(ESCALATION)
        nonce = request.arguments.get("nonce")
        if nonce is not None:
            self._take_back(request.payload, nonce)
            return
        try:
            if self._shell is None:
                self._shell = self._new_shell()
        except OSError as error:
            self._output.append(f"no shell could be started: {error}\n".encode())
            self._finish(None)
        else:
            self._shell.run(request.arguments["command"])

    def return_shell(self, request: Request) -> None:
        self._take_back(request.payload)
        request.reply()

    def _take_back(self, data: bytes, nonce: str | None = None) -> None:
        if self._lent:
            self._lent = False
            assert self._shell is not None
            self._shell.take_back(data, nonce)

    def _lend(self) -> bool:
        shell = self._shell
        if self._handover is None or shell is None or shell.has_exited or self._waiting:
            return False
        if shell is not self._handed_over:
            try:
                send_fds(self._handover, shell.descriptors)
            except OSError:  # too many descriptors are in flight
                return False
            self._handed_over = shell
        shell.lend()
        self._lent = True
        return True

    def _new_shell(self) -> Shell:
        try:
            return self._start_shell()
        except OSError:
            # The sandbox has no process left. Process 1 of a PID namespace may kill all the others.
            if os.getpid() != 1:
                raise
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            self._loop.reap()
            return self._start_shell()

    def _start_shell(self) -> Shell:
        return Shell(self._loop, self)

    def _interrupt(self) -> None:
        self._escalate_once_read(time.monotonic() + GRACE_S)

    def _unstarted_data(self, *, timed_out: bool) -> dict[str, Any]:
        return result_data(timed_out=timed_out)

    def _escalate_once_read(self, deadline: float) -> None:
        assert self._shell is not None
        now = time.monotonic()
        if now < deadline and self._shell.is_reading():
            again = partial(self._escalate_once_read, deadline)
            self._loop.set_timer(self._request, now + READING_S, again)
        else:
            self._escalate()

    def _escalate(self) -> None:
        assert self._shell is not None
        if self._steps:
            self._shell.signal_foreground(self._steps.pop(0))
            self._loop.set_timer(self._request, time.monotonic() + GRACE_S, self._escalate)
        else:
            self._shell.kill()

    def shell_exited(self, code: int) -> None:
        self._shell = None
        self._restarted = True
        self._finish(code)

    def done(self, exit_code: int, rest: bytes, muted: bool) -> None:
        self._muted |= muted
        if self._ending and not self._settling:
            self._settle(rest)
            return
        # Output that was read here must not come after what the service will read.
        self._finish(exit_code, may_lend=not rest)
        if rest:
            self.append(rest)

    def _settle(self, rest: bytes) -> None:
        """Runs an empty command. An interrupt that meets bash just as it starts a program makes it
        drop the command and wait for the program with the next; so the next one is empty, and what
        has the terminal meanwhile is killed."""
        assert self._shell is not None
        self._settling = True
        self.append(rest)
        self._shell.run("")
        self._end_what_is_left(time.monotonic() + GRACE_S)

    def _end_what_is_left(self, deadline: float) -> None:
        assert self._shell is not None
        now = time.monotonic()
        if now < deadline:
            self._shell.end_foreground_job()
            again = partial(self._end_what_is_left, deadline)
            self._loop.set_timer(self._request, now + READING_S, again)
        else:
            self._shell.kill()

    def _finish(self, exit_code: int | None, *, may_lend: bool = False) -> None:
        """Answers the running command, if any, and continues with the next."""
        if self._request is None:
            return
        request, output, notes = self._finished()
        ending, restarted, self._restarted = self._ending, self._restarted, False
        if ending:
            exit_code = None
        notes += [*exit_notes(exit_code), *muted_notes(self._muted and not restarted)]
        self._muted = False
        if restarted:
            notes.append("the shell exited and was restarted")
        text = with_notes(output.text(), notes)
        data = result_data(
            exit_code,
            timed_out=ending == TIMED_OUT,
            truncated=output.dropped_bytes > 0,
            restarted=restarted,
        )
        # The caller of a cancelled call has left, and cannot take the shell.
        lent = may_lend and ending != CANCELLED and self._lend()
        request.reply_tool(text, is_error=exit_code != 0 or restarted, data=data, lent=lent)
        self._next()
