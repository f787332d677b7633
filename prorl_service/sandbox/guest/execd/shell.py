"""One bash on a pseudo-terminal: commands go in, their output and exit codes come out.

bash is interactive, so that job control gives every command a process group of its own and an
error in one command never ends the shell. It reads commands from a pipe, not from the terminal:
no echo, no 4096-byte lines, nothing a command could read by mistake. Commands themselves get an
empty standard input. A mark with a nonce shows a command's end; it is printed to the terminal after
the last output, hence in order with it. Time-outs, truncation and restarts are up to `bash`.

While the shell is lent, the service writes commands and reads the terminal by the same descriptors.
"""

import contextlib
import fcntl
import os
import pty
import signal
import sys
import termios
from typing import Protocol

from ptyprocess import PtyProcess

from .command import UNMUTE, EndMark, end_bytes, may_mute, new_nonce, script
from .loop import Loop, PipeWriter

RESTORED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)
"""Signals that this program or Python ignores; bash could not reset them if it inherited that."""

_INIT = b"PS1= PS2=; declare +x PS1; unset HISTFILE; set +o history +H\n"

_READ_BYTES = 65536
_MAX_LAST_READS = 256


class ShellUser(Protocol):
    def append(self, data: bytes) -> None:
        """Gets output."""

    def done(self, exit_code: int, rest: bytes, muted: bool) -> None:
        """Gets a command's exit code, what came after its end, and whether it muted the shell."""

    def shell_exited(self, code: int) -> None: ...


class Shell:
    def __init__(self, loop: Loop, user: ShellUser) -> None:
        """Starts bash in the working directory of this process. Raises `OSError`."""
        self._loop = loop
        self._user = user
        self._end: EndMark | None = None
        self._end_bytes = 0
        self._checked = False
        self._lent = False
        self._exit_code: int | None = None
        self._process, self._commands = _spawn()
        self._send = PipeWriter(loop, self._commands).write
        self._terminal: int = self._process.fd
        self.pid: int = self._process.pid
        loop.watch(self._terminal, self._read)
        loop.on_exit(self.pid, self._exited)
        self._send(_INIT)

    def run(self, command: str) -> None:
        """Starts `command`. `done` will be called or, if the shell ends instead, `shell_exited`."""
        self._checked |= may_mute(command)
        nonce = new_nonce(checked=self._checked)
        self._end, self._end_bytes = EndMark(nonce), end_bytes(nonce)
        self._send(script(command, nonce))

    @property
    def descriptors(self) -> tuple[int, int]:
        """Descriptors of the terminal, and of the pipe for commands."""
        return self._terminal, self._commands

    @property
    def has_exited(self) -> bool:
        return self._exit_code is not None

    def lend(self) -> None:
        """Stops using the descriptors until `take_back`. No command may be running."""
        self._lent = True
        self._loop.unwatch(self._terminal)

    def take_back(self, data: bytes, nonce: str | None) -> None:
        """Takes the shell back. `data` was read and not used; `nonce` is of a started command."""
        self._lent = False
        self._loop.watch(self._terminal, self._read)
        if nonce:
            self._end, self._end_bytes = EndMark(nonce), end_bytes(nonce)
        self._feed(data)
        if self._exit_code is not None:
            self._exited(self._exit_code)

    def is_reading(self) -> bool:
        """Returns whether bash still reads the command's text: an interrupt now would be lost."""
        unread = bytearray(4)
        fcntl.ioctl(self._commands, termios.FIONREAD, unread)
        return int.from_bytes(unread, sys.byteorder) > self._end_bytes

    def signal_foreground(self, number: int) -> None:
        """Signals what is running; an interrupt also makes bash drop the rest of the command.

        bash comes first: once its child is dead, it would apply the interrupt to its next line.
        """
        with contextlib.suppress(OSError):
            group = os.tcgetpgrp(self._terminal)
            if number == signal.SIGINT and group != self.pid:
                os.kill(self.pid, number)
            if group > 1:
                os.killpg(group, number)

    def end_foreground_job(self) -> None:
        """Kills the foreground job that a command has left."""
        with contextlib.suppress(OSError):
            group = os.tcgetpgrp(self._terminal)
            if group > 1 and group != self.pid:
                os.killpg(group, signal.SIGKILL)

    def kill(self) -> None:
        self.signal_foreground(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        try:
            self._feed(os.read(self._terminal, _READ_BYTES))
        except BlockingIOError:
            pass
        except OSError:  # EIO: hung up. `_exited` does the rest.
            self._loop.unwatch(self._terminal)

    def _feed(self, data: bytes) -> None:
        if self._end is None:
            self._emit(data)
            return
        output, exit_code, rest = self._end.feed(data)
        self._emit(output)
        if exit_code is not None:
            muted = self._end.muted
            self._end = None
            if muted:
                self._send(UNMUTE)
            self._user.done(exit_code, rest, muted)

    def _emit(self, output: bytes) -> None:
        if output:
            self._user.append(output)

    def _exited(self, code: int) -> None:
        self._exit_code = code
        if self._lent:  # its last output is the service's to read
            return
        # The exit of a session's leader hangs its terminal up: reads end with an error once what
        # was written is read, even if other processes hold the terminal.
        with contextlib.suppress(OSError):
            for _ in range(_MAX_LAST_READS):
                self._feed(os.read(self._terminal, _READ_BYTES))
        if self._end is not None:
            self._emit(self._end.held)
        self._close()
        self._user.shell_exited(code)

    def _close(self) -> None:
        for fd in (self._terminal, self._commands):
            self._loop.unwatch(fd)
        os.close(self._commands)
        # Its exit is known already: ptyprocess must not wait for it.
        self._process.terminated = True
        self._process.delayafterclose = 0
        self._process.close()


def _spawn() -> tuple[PtyProcess, int]:
    """Starts bash on a terminal. Returns it, and the descriptor to write its commands to.

    `PtyProcess.spawn` is not used: it forks, and every page touched before its `exec` is copied.
    """
    with contextlib.ExitStack() as after, contextlib.ExitStack() as failing:
        read, write = os.pipe()
        after.callback(os.close, read)
        failing.callback(os.close, write)
        terminal, other_end = pty.openpty()
        after.callback(os.close, other_end)
        failing.callback(os.close, terminal)
        _set_up(terminal)
        pid = os.posix_spawnp(
            "bash",
            ["bash", "--noprofile", "--norc", "--noediting", "-i"],
            _environment(),
            setsid=True,
            setsigdef=RESTORED_SIGNALS,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, read, 0),
                # The first terminal that the leader of a session opens becomes its controlling one.
                (os.POSIX_SPAWN_OPEN, 1, os.ttyname(other_end), os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )
        failing.pop_all()
    os.set_blocking(terminal, False)
    os.set_blocking(write, False)
    return PtyProcess(pid, terminal), write


def _set_up(terminal: int) -> None:
    """Turns off echo and translation of line ends: bytes as they are, and twice the speed."""
    attributes = termios.tcgetattr(terminal)
    attributes[1] &= ~termios.OPOST
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    termios.tcsetwinsize(terminal, (50, 200))


def _environment() -> dict[str, str]:
    """Returns this program's variables, without those of its Python, and with an empty prompt."""
    environment = {**os.environ, "PS1": ""}
    environment.pop("LD_LIBRARY_PATH", None)
    return environment
