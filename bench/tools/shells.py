"""Other ways than ours to run a shell command: all on the host, and only Apptainer isolates.

Each `run` blocks until the command has ended and returns its whole output.
"""

import asyncio
import os
import re
import subprocess
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager

import pexpect.replwrap  # type: ignore[import-untyped]
from ptyprocess import PtyProcess

Run = Callable[[str], object]

BASH = ["bash", "--norc", "--noprofile"]
_READ_BYTES = 1 << 16
_MARK = "printf '\\036%d\\036' $?"
_END = re.compile(rb"\x1e\d+\x1e$")


@contextmanager
def _bash_on_pty() -> Iterator[int]:
    """Yields the descriptor of the terminal of a bash that prompts for nothing."""
    shell = PtyProcess.spawn([*BASH, "--noediting"], echo=False, env={**os.environ, "PS1": ""})
    tty.setraw(shell.fd, termios.TCSANOW)
    os.write(shell.fd, f"PS1= PS2=\n{_MARK}\n".encode())
    _read_to_mark(shell.fd)
    try:
        yield shell.fd
    finally:
        shell.close(force=True)


@contextmanager
def bare_pty() -> Iterator[Callable[[str], bytes]]:
    """The floor: bash on a terminal, one write, reads up to the mark; no framework, no safety."""
    with _bash_on_pty() as fd:

        def run(command: str) -> bytes:
            os.write(fd, f"{command}\n{_MARK}\n".encode())
            return _read_to_mark(fd)

        yield run


class _Events:
    """Data from a descriptor, read by the event loop, as a service for many has to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = bytearray()
        self._come = asyncio.Event()
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._read)

    def _read(self) -> None:
        self._data += os.read(self._fd, _READ_BYTES)
        self._come.set()

    async def next(self) -> bytearray:
        await self._come.wait()
        self._come.clear()
        data, self._data = self._data, bytearray()
        return data

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)


@contextmanager
def pty_on_event_loop() -> Iterator[Callable[[str], Awaitable[bytes]]]:
    """The floor on the event loop that serves all sandboxes: nothing may block it."""
    with _bash_on_pty() as fd, closing(_Events(fd)) as events:

        async def run(command: str) -> bytes:
            os.write(fd, f"{command}\n{_MARK}\n".encode())
            output = bytearray()
            while True:
                output += await events.next()
                end = _END.search(output, max(0, len(output) - 8))
                if end:
                    return bytes(output[: end.start()])

        yield run


def _read_to_mark(fd: int) -> bytes:
    output = bytearray()
    while True:
        output += os.read(fd, _READ_BYTES)
        end = _END.search(output, max(0, len(output) - 8))
        if end:
            return bytes(output[: end.start()])


@contextmanager
def pexpect_repl() -> Iterator[Run]:
    """pexpect's own wrapper of bash, without the 50 ms it waits before sending."""
    shell = pexpect.replwrap.bash()
    shell.child.delaybeforesend = None
    try:
        yield shell.run_command
    finally:
        shell.child.close(force=True)


def process_per_command(argv: list[str], *, user: int | None = None, home: str = "/") -> Run:
    """Runs `argv` with a command added, a new process each: directory, variables and jobs are
    lost."""
    return lambda command: run_process([*argv, command], user=user, home=home)


def run_process(argv: list[str], *, user: int | None = None, home: str = "/") -> bytes:
    """Returns what the process printed. `user`: of the host, and its group.

    Raises `CalledProcessError`.
    """
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
        cwd="/",
        env=environment(home),
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    ).stdout


def environment(home: str = "/") -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": home}


def host_shells(stack: AsyncExitStack) -> dict[str, Run]:
    return {
        "bare pty, blocking": stack.enter_context(bare_pty()),
        "bare pty on the event loop": stack.enter_context(pty_on_event_loop()),
        "pexpect replwrap": stack.enter_context(pexpect_repl()),
        "bash -c each": process_per_command(["bash", "-c"]),
    }
