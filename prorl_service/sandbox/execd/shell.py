"""One bash on a pseudo-terminal: it is sent a command, and its output and exit code come back.

bash is interactive, so that job control gives every command a process group of its own and an
error in one command never ends the shell. It reads commands from a pipe, not from the terminal:
no echo, no 4096-byte lines, nothing a command could read by mistake. Commands themselves get an
empty standard input. A command's end is told by a mark with a nonce, printed to the terminal after
its last output, hence in order with it. Time-outs, truncation and restarts are not known here.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import termios

# ptyprocess needs `which` alone of shutil, which takes a tenth of this program's start, and has its
# own where shutil is missing.
sys.modules["shutil"] = None  # type: ignore[assignment]
from ptyprocess import PtyProcess  # noqa: E402

del sys.modules["shutil"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop

RESTORED_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)
"""Ignored by this program or by Python; inherited as ignored they could not be reset by bash."""

_INIT = b"PS1= PS2=; declare +x PS1; unset HISTFILE; set +o history +H\n"

# The empty line ends what a syntax error in the command may have left open in the parser. errexit
# is for one command: kept on, the next failing command would take the shell down. Prompts are
# emptied because activation scripts set them. `2>/dev/null` hides this line from `set -x`, and the
# backslash keeps aliases out.
_SCRIPT = (
    b"\\builtin eval '%s' </dev/null\n"
    b"\n"
    b"{ \\builtin printf '\\036%s %%d\\036' \"$?\" >/dev/tty;"
    b" PS1= PS2= PROMPT_COMMAND=; \\builtin set +e; } 2>/dev/null\n"
)

_READ_BYTES = 65536
_MAX_CODE_BYTES = 8
_MAX_LAST_READS = 256


class Shell:
    def __init__(
        self,
        loop: Loop,
        *,
        on_output: Callable[[bytes], None],
        on_done: Callable[[int], None],
        on_exit: Callable[[int], None],
    ) -> None:
        """Starts bash in the working directory of this process. Raises `OSError`."""
        self._loop = loop
        self._on_output = on_output
        self._on_done = on_done
        self._on_exit = on_exit
        self._mark = b""
        self._held = b""
        self._unwritten = b""
        self._process, self._commands = _spawn()
        self._terminal: int = self._process.fd
        self.pid: int = self._process.pid
        loop.watch(self._terminal, self._read)
        loop.on_exit(self.pid, self._exited)
        self._send(_INIT)

    def run(self, command: str) -> None:
        """Start `command`; `on_done` or `on_exit` will be called with its exit code."""
        nonce = os.urandom(12).hex().encode()
        self._mark = b"\x1e%s " % nonce
        quoted = command.encode("utf-8", "replace").replace(b"'", b"'\\''")
        self._send(_SCRIPT % (quoted, nonce))

    def signal_foreground(self, number: int) -> None:
        """Signal what is running; an interrupt also makes bash drop the rest of the command.

        bash first: once its child is dead it would take the interrupt for one of its next line.
        """
        with contextlib.suppress(OSError):
            group = os.tcgetpgrp(self._terminal)
            if number == signal.SIGINT and group != self.pid:
                os.kill(self.pid, number)
            if group > 1:
                os.killpg(group, number)

    def kill(self) -> None:
        self.signal_foreground(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _send(self, data: bytes) -> None:
        self._unwritten += data
        self._write()

    def _write(self) -> None:
        """Write what the pipe takes now; a command may be longer than it."""
        self._loop.unwatch(self._commands)
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._commands, self._unwritten) :]
        except BlockingIOError:
            self._loop.watch(self._commands, self._write, selectors.EVENT_WRITE)
        except BrokenPipeError:  # its exit says the rest
            self._unwritten = b""

    def _read(self) -> None:
        try:
            self._feed(os.read(self._terminal, _READ_BYTES))
        except BlockingIOError:
            pass
        except OSError:  # EIO: hung up. What that means is told by the exit of the process.
            self._loop.unwatch(self._terminal)

    def _feed(self, data: bytes) -> None:
        """Pass output on without the mark, which may come in pieces."""
        data = self._held + data
        self._held = b""
        start = data.find(self._mark) if self._mark else -1
        if start < 0:
            self._hold_start_of_mark(data)
            return
        self._emit(data[:start])
        code, ended, rest = data[start + len(self._mark) :].partition(b"\x1e")
        if ended and code.isdigit():
            self._mark = b""
            self._on_done(int(code))
            self._emit(rest)
        elif not ended and len(code) <= _MAX_CODE_BYTES:
            self._held = data[start:]
        else:  # a forgery: the command found its own nonce
            self._emit(data[start:])

    def _hold_start_of_mark(self, data: bytes) -> None:
        start = data.rfind(b"\x1e")
        if start >= 0 and self._mark.startswith(data[start:]):
            self._held = data[start:]
            data = data[:start]
        self._emit(data)

    def _emit(self, output: bytes) -> None:
        if output:
            self._on_output(output)

    def _exited(self, code: int) -> None:
        # The exit of a session's leader hangs its terminal up: reads end with an error once what
        # was written is read, whoever else holds the terminal.
        with contextlib.suppress(OSError):
            for _ in range(_MAX_LAST_READS):
                self._feed(os.read(self._terminal, _READ_BYTES))
        self._emit(self._held)
        self._close()
        self._on_exit(code)

    def _close(self) -> None:
        for fd in (self._terminal, self._commands):
            self._loop.unwatch(fd)
        os.close(self._commands)
        # Its exit is known already: ptyprocess must not wait for it.
        self._process.terminated = True
        self._process.delayafterclose = 0
        self._process.close()


def _spawn() -> tuple[PtyProcess, int]:
    """A bash on a terminal, and the descriptor to write its commands to."""
    read, write = os.pipe()

    def prepare() -> None:
        os.dup2(read, 0)
        for number in RESTORED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        # No translation of line ends: programs' bytes as they are, and twice the speed.
        attributes = termios.tcgetattr(1)
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(1, termios.TCSANOW, attributes)

    try:
        process = PtyProcess.spawn(
            ["bash", "--noprofile", "--norc", "--noediting", "-i"],
            env=_environment(),
            echo=False,
            preexec_fn=prepare,
            dimensions=(50, 200),
            pass_fds=(read,),
        )
    except BaseException:
        os.close(write)
        raise
    finally:
        os.close(read)
    os.set_blocking(process.fd, False)
    os.set_blocking(write, False)
    return process, write


def _environment() -> dict[str, str]:
    """This program's own, without what is for its Python, and with no prompt from the first."""
    environment = {**os.environ, "PS1": ""}
    environment.pop("LD_LIBRARY_PATH", None)
    return environment
