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
from contextlib import closing, contextmanager

from ptyprocess import PtyProcess

Run = Callable[[str], object]

BASH = ["bash", "--norc", "--noprofile"]
_READ_BYTES = 1 << 16
_MARK = "printf '\\036%d\\036' $?"
_END = re.compile(rb"\x1e\d+\x1e$")


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
    """The floor: bash on a terminal, one write, reads up to the mark; no framework, no safety.
    On the event loop that serves all sandboxes: nothing may block it."""
    no_prompts = {**os.environ, "PS1": "", "PS2": ""}
    shell = PtyProcess.spawn([*BASH, "--noediting"], echo=False, env=no_prompts)
    tty.setraw(shell.fd, termios.TCSANOW)

    async def run(command: str) -> bytes:
        os.write(shell.fd, f"{command}\n{_MARK}\n".encode())
        output = bytearray()
        while True:
            output += await events.next()
            end = _END.search(output, max(0, len(output) - 8))
            if end:
                return bytes(output[: end.start()])

    with closing(_Events(shell.fd)) as events:
        try:
            yield run
        finally:
            shell.close(force=True)


def process_per_command(argv: list[str], *, user: int | None = None) -> Run:
    """Runs `argv` with a command added, a new process each: directory, variables and jobs are
    lost."""
    return lambda command: run_process([*argv, command], user=user)


def run_process(argv: list[str], *, user: int | None = None) -> bytes:
    """Returns what the process printed. `user`: of the host, and its group.

    Raises `CalledProcessError`.
    """
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
        cwd="/",
        env=environment(),
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    ).stdout


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/"}
