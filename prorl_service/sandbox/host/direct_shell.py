"""A sandbox's bash while it is lent to the service: short commands run without a detour.

The service writes to the shell and reads its terminal on its own event loop, which saves two
switches between processes, half the time of a short command. A command that takes longer or prints
more goes back to the execution server, which handles time-outs, streams and floods. This module
leaves them to it, and bounds the share of the loop that one sandbox may take.
"""

import asyncio
import os
import select
import stat
from collections.abc import Callable

from prorl_service.sandbox.base import ToolResult
from prorl_service.sandbox.guest.execd import command as bash
from prorl_service.sandbox.guest.execd.fd_passing import SHELL
from prorl_service.sandbox.guest.execd.output import with_notes
from prorl_service.sandbox.host.handover import Handover

SHORT_S = 0.25
"""Seconds after which a running command goes back."""
SHORT_BYTES = 1 << 14
"""Bytes of output since the last command; with more, the shell goes back, even if it is idle."""
SHORT_READS = 64
"""Maximum reads of that output: each costs the loop 8 us, however small it is."""

_READ_BYTES = 1 << 12  # the most that one read of a terminal gives
_TERMINAL_MASTER = os.makedev(5, 2)


class DirectShell:
    """A shell that the service may borrow; not lent to begin with. Runs one command at a time."""

    def __init__(
        self, handover: Handover, *, max_bytes: int, give_back: Callable[[bytes], None]
    ) -> None:
        """`handover`: where descriptors arrive. `give_back` is called with what was read
        when an idle shell must go back."""
        self._handover = handover
        self._max_bytes = min(max_bytes, SHORT_BYTES)
        self._give_back = give_back
        self._terminal = self._commands = -1
        self._lent = False
        self._output = bytearray()
        self._reads = 0
        self._nonce = ""
        self._checked = False
        self._end: bash.EndMark | None = None
        self.running: asyncio.Future[ToolResult | None] | None = None

    def take(self) -> None:
        """Starts to use the shell, which the execution server has lent."""
        if self._handover.is_closed:
            return
        fds = self._handover.take(SHELL)
        if fds:
            self._close_descriptors()
            self._terminal, self._commands = _checked(fds)
        if self._terminal < 0:
            self._give_back(b"")
            return
        self._lent = True
        asyncio.get_running_loop().add_reader(self._terminal, self._read)

    async def run(self, command: str, timeout_s: float) -> ToolResult | None:
        """Runs a command. None if it could not start or end here: `give_up`, run it elsewhere."""
        self._checked |= bash.may_mute(command)
        nonce = bash.new_nonce(checked=self._checked)
        if not self._lent or "\0" in command or not self._write(bash.script(command, nonce)):
            return None
        self._nonce, self._end = nonce, bash.EndMark(nonce)
        loop = asyncio.get_running_loop()
        self.running = loop.create_future()
        timer = loop.call_later(min(timeout_s, SHORT_S), self._leave_command)
        try:
            return await self.running
        finally:
            timer.cancel()
            self.running = None

    def _write(self, script: bytes) -> bool:
        if len(script) > select.PIPE_BUF:  # more might be written in part
            return False
        try:
            os.write(self._commands, script)
        except (BlockingIOError, BrokenPipeError):
            return False
        return True

    def give_up(self) -> tuple[bytes, str | None]:
        """Stops using the shell. Returns unused output, and the nonce of a running command."""
        self._stop_reading()
        read, nonce = bytes(self._output), None
        if self._end is not None:
            read += self._end.held
            nonce = self._nonce
        self._output.clear()
        self._reads = 0
        self._end = None
        return read, nonce

    def close(self) -> None:
        self._stop_reading()
        if self.running is not None and not self.running.done():
            self.running.set_result(None)
        self._close_descriptors()

    def _read(self) -> None:
        try:
            data = os.read(self._terminal, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # hung up: the shell has ended
            self._leave()
            return
        if self._end is None:
            self._output += data
        else:
            self._take_output(*self._end.feed(data))
        self._reads += 1
        if len(self._output) > self._max_bytes or self._reads > SHORT_READS:
            self._leave()

    def _take_output(self, output: bytes, exit_code: int | None, rest: bytes) -> None:
        self._output += output
        if exit_code is None:
            return
        assert self._end is not None
        muted = self._end.muted
        if muted:
            self._write(bash.UNMUTE)  # if the pipe is full, the next command finds it muted too
        if self.running is not None and not self.running.done():
            self.running.set_result(_result(self._output, exit_code, muted))
        self._output = bytearray(rest)
        self._reads = 0
        self._end = None

    def _leave(self) -> None:
        if self._end is None:
            self._give_back(self.give_up()[0])
        else:
            self._leave_command()

    def _leave_command(self) -> None:
        """Ends the wait for the command without a result; its caller then calls `give_up`."""
        if self._end is not None:
            self._stop_reading()
            if self.running is not None and not self.running.done():
                self.running.set_result(None)

    def _stop_reading(self) -> None:
        if self._lent:
            self._lent = False
            asyncio.get_running_loop().remove_reader(self._terminal)

    def _close_descriptors(self) -> None:
        for fd in (self._terminal, self._commands):
            if fd >= 0:
                os.close(fd)
        self._terminal = self._commands = -1


def _result(output: bytearray, exit_code: int, muted: bool) -> ToolResult:
    text = output.decode("utf-8", "replace").replace("\r\n", "\n")
    return ToolResult(
        with_notes(text, [*bash.exit_notes(exit_code), *bash.muted_notes(muted)]),
        exit_code != 0,
        bash.result_data(exit_code),
    )


def _checked(fds: list[int]) -> tuple[int, int]:
    """Returns descriptors of a terminal and a pipe, or -1 twice: anything else might block.

    Some are missing if this process cannot open more.
    """
    if len(fds) == 2 and not any(os.get_blocking(fd) for fd in fds):
        terminal, commands = map(os.fstat, fds)
        if terminal.st_rdev == _TERMINAL_MASTER and stat.S_ISFIFO(commands.st_mode):
            return fds[0], fds[1]
    for fd in fds:
        os.close(fd)
    return -1, -1
