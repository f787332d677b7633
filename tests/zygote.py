"""`prorl` processes that start warm: each is forked from one that has imported what they need.

A fresh `prorl engine` spends 5 s of CPU on imports, a `prorl serve` 1.5 s, and the tests start
hundreds. Forked ones are processes of their own, children of the tests' process like fresh ones;
`tests/packaging` and the tests of commands start fresh ones. `python -m tests.zygote FD MODULE...`
is the process that forks.
"""

import atexit
import ctypes
import gc
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import IO, Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLI = "prorl_service.cli"
NEEDS: Mapping[str, tuple[str, ...]] = {
    "serve": ("prorl_service.cli.serve", "prorl_service.server.compose"),
    "engine": (
        "prorl_service.cli.engine",
        "prorl_service.inference.reference_engine.server",
        "transformers.models.qwen3.modeling_qwen3",
    ),
}
"""Modules to import beforehand, by the command that needs them."""
ALIKE = {"front": "serve"}
MAX_MESSAGE = 2**20
_lock = threading.Lock()


class Forked(subprocess.Popen[bytes]):
    """A child of this process that another one has forked."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid, self.args = pid, args
        self.stdin = self.stdout = self.stderr = None
        self.returncode: int | None = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()
        self._sigint_wait_secs = 0.25


class Zygote:
    def __init__(self, modules: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.zygote", str(theirs.fileno()), *modules]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        atexit.register(self._end)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
    ) -> Forked:
        asked = {"arguments": arguments, "environment": dict(environment), "cwd": os.getcwd()}
        with _adopting():
            socket.send_fds(self._socket, [json.dumps(asked).encode()], [output.fileno()])
            pid = int(self._socket.recv(MAX_MESSAGE))
        return Forked(pid, arguments)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


@contextmanager
def _adopting() -> Iterator[None]:
    """Makes this process the parent of what its descendants leave behind; other orphans are left to
    init, which waits for them."""
    with _lock:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            _prctl(PR_SET_CHILD_SUBREAPER, 0)


@cache
def zygote_for(command: str) -> Zygote:
    return Zygote(NEEDS[command])


def start(
    command: Sequence[str], output: IO[bytes], environment: Mapping[str, str]
) -> "subprocess.Popen[bytes] | None":
    """Starts a command of `prorl`; returns None for another one, or one that imports otherwise."""
    whole = [sys.executable, "-m", CLI]
    name = ALIKE.get(command[3], command[3]) if list(command[:3]) == whole else ""
    if name not in NEEDS or any(os.environ.get(key) != value for key, value in environment.items()):
        return None
    return zygote_for(name).start(command[3:], os.environ | environment, output)


# --- the process that forks -----------------------------------------------------------------------


def _serve(connection: socket.socket, modules: Sequence[str]) -> None:
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()  # the pages stay shared
    assert threading.active_count() == 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    while True:
        message, fds, *_ = socket.recv_fds(connection, MAX_MESSAGE, 1)
        if not message:
            return
        reading, writing = os.pipe()
        if (between := os.fork()) == 0:
            # The one between ends at once: its child becomes the tests' process's.
            between = os.getpid()
            if pid := os.fork():
                os.write(writing, str(pid).encode())
                os._exit(0)
            for fd in (reading, writing, connection.fileno()):
                os.close(fd)
            while os.getppid() == between:
                time.sleep(0.001)
            _become(json.loads(message), fds[0])
        os.close(writing)
        os.waitpid(between, 0)
        connection.send(os.read(reading, 100))
        os.close(reading)
        os.close(fds[0])


def _become(asked: Mapping[str, Any], output: int) -> None:
    """Runs the command in this process, as `python -m` would, and ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - for the rest of the process
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["prorl", *asked["arguments"]]
    random.seed()
    code: object = 1
    try:
        runpy.run_module(CLI, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 0)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
