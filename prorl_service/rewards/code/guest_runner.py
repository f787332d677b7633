"""A tool that runs a program's test cases one by one. Sent to the server in the sandbox as source.

It is part of the server, so programs cannot signal, trace or read it. A call is a case: it brings
the input, which no other process has before, and returns what the program wrote. A program that
does not end by itself is killed with all other processes of the sandbox. Runs on the service's own
Python.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import selectors
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prorl_service.sandbox.guest.execd.request import Request

READ_BYTES = 1 << 16
MAX_PACKET_BYTES = 4096

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Settings for libraries that start a thread per processor, which would exceed the limits."""


class Host:
    """The process that forks for each case. Its program is `guest_supervisor`."""

    def __init__(self, program: str, options: dict[str, Any]) -> None:
        """Raises `OSError`."""
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.is_ready = False
        environment = {**os.environ, **ONE_THREAD}
        environment.pop("LD_LIBRARY_PATH", None)  # set for this process's own Python
        with theirs:
            os.posix_spawnp(
                "python3",
                ["python3", "-I", "-c", program, json.dumps(options)],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,
                setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
            )


host: Host | None = None


def tool(request: Request) -> None:
    if os.getpid() != 1:
        raise OSError(errno.EPERM, "programs run only in a PID namespace of their own")
    Case(request)


class Case:
    """One case. Answers its call when the program has ended or was killed."""

    def __init__(self, request: Request) -> None:
        global host
        self._request = request
        self._loop = request.loop
        self._input = memoryview(request.arguments["input"].encode())
        self._output = bytearray()
        self._stdin = self._stdout = -1
        self._started = time.monotonic()
        if host is None:
            host = Host(request.arguments["program"], request.arguments["options"])
        self._host = host
        self._loop.watch(host.control.fileno(), self._host_says)
        self._loop.set_timer(self, request.deadline, self._time_is_up)
        request.on_cancel(self._time_is_up)
        if host.is_ready:
            self._start()

    def _start(self) -> None:
        arguments = self._request.arguments
        stdin, self._stdin = os.pipe()
        self._stdout, stdout = os.pipe()
        message = json.dumps({"cpu_s": arguments["cpu_s"]}).encode()
        with contextlib.suppress(OSError):  # it has died; the socket will report it
            socket.send_fds(self._host.control, [message], [stdin, stdout])
        os.close(stdin)
        os.close(stdout)
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._started = time.monotonic()
        self._loop.set_timer(self, self._started + arguments["wall_s"], self._time_is_up)
        self._loop.watch(self._stdout, self._read)
        self._loop.watch(self._stdin, self._write, selectors.EVENT_WRITE)

    def _write(self) -> None:
        try:
            self._input = self._input[os.write(self._stdin, self._input[:READ_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._input = memoryview(b"")
        if not self._input:
            self._loop.unwatch(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def _read(self) -> None:
        data = os.read(self._stdout, READ_BYTES)
        self._output += data
        if not data:
            self._loop.unwatch(self._stdout)
        elif len(self._output) > self._request.arguments["max_output_bytes"]:
            self._abort("output_limit")

    def _read_the_rest(self) -> None:
        """Reads until the pipe is empty or the output too large."""
        with contextlib.suppress(BlockingIOError):
            before = -1
            while self._stdout >= 0 and len(self._output) > before:
                before = len(self._output)
                self._read()

    def _host_says(self) -> None:
        try:
            packet = self._host.control.recv(MAX_PACKET_BYTES)
        except ConnectionResetError:
            packet = b""
        if not self._host.is_ready:
            self._host.is_ready = packet == b"ready"
            if self._host.is_ready:
                self._start()
            else:
                self._fail()
        elif (said := checked(packet)) is None:
            self._abort("lost")
        else:
            self._read_the_rest()
            if self._stdout >= 0:
                self._close()
                self._reply(said)

    def _time_is_up(self) -> None:
        if self._host.is_ready:
            self._abort("timeout")
        else:
            self._fail()

    def _fail(self) -> None:
        """Fails the call: nothing of the program has run yet."""
        self._close()
        kill_all()
        self._request.fail("python3 does not start in the sandbox")

    def _abort(self, end: str) -> None:
        self._close()
        kill_all()
        self._output.clear()
        self._reply({"end": end})

    def _reply(self, said: dict[str, Any]) -> None:
        said["wall_s"] = time.monotonic() - self._started
        self._request.reply_tool(self._output.decode("utf-8", "replace"), is_error=False, data=said)

    def _close(self) -> None:
        self._loop.clear_timer(self)
        for fd in (self._stdin, self._stdout, self._host.control.fileno()):
            self._loop.unwatch(fd)
        for pipe in (self._stdin, self._stdout):
            if pipe >= 0:
                os.close(pipe)
        self._stdin = self._stdout = -1


def kill_all() -> None:
    """Kills all other processes of the sandbox."""
    global host
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    if host is not None:
        host.control.close()
        host = None


def checked(packet: bytes) -> dict[str, Any] | None:
    """Returns what the host said, or None: a program may have taken it over."""
    try:
        said = json.loads(packet)
        if said == {"end": "compile_error"}:
            return dict(said)
        exit_code, cpu_s = int(said["exit_code"]), float(said["cpu_s"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    if not 0 <= exit_code < 256 or not 0 <= cpu_s < math.inf:
        return None
    return {"end": "exited", "exit_code": exit_code, "cpu_s": cpu_s}
