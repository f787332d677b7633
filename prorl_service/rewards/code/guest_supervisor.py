"""Supervisor of one program, run for each test case in a new process. Sent into the sandbox.

Runs on the image's Python, which starts once and compiles the program once; a case is a fork. The
supervisor never has the input of a case, only the ends of pipes that `guest_runner` made, and its
reports only say that a case has ended. A program may kill it or take it over, and gains only a
failure. Standard input is the socket to `guest_runner`. Python 3.7 and newer.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import resource
import signal
import socket
import struct
import sys
from types import CodeType, ModuleType
from typing import Any

PROCESSES = 64
"""Maximum processes and threads of a case, below this process's own: it can always fork."""

FILE_BYTES = 64 << 20


def main(options: dict[str, Any]) -> None:
    """Runs cases. `options`: `solution`, a path; `function`, a name or None; `memory_bytes`."""
    code, cpu_s, stdin, stdout = serve(options["solution"])
    confine(cpu_s, options["memory_bytes"])
    module = ModuleType("__main__")
    module.__dict__.update(__file__=options["solution"], __builtins__=builtins)
    sys.modules["__main__"] = module
    sys.argv = [options["solution"]]
    sys.path.insert(0, os.path.dirname(options["solution"]))
    if options["function"] is None:
        os.dup2(stdout, 1)
        open_streams(stdin, stdout)
        exec(code, module.__dict__)
    else:
        with open(stdin) as file:
            arguments = json.load(file)
        exec(code, module.__dict__)
        value = find(module.__dict__, options["function"])(*arguments)
        with open(stdout, "w") as file:
            json.dump(value, file)


def serve(solution: str) -> tuple[CodeType, int, int, int]:
    """Returns in each case's process: program, seconds of CPU time, input, output."""
    control = socket.socket(fileno=0)
    control.send(b"ready")
    code = compiled(solution)
    while True:
        message, ancillary, _, _ = control.recvmsg(256, socket.CMSG_SPACE(8))
        if not ancillary:
            os._exit(0)
        pipes = struct.unpack("ii", ancillary[0][2])
        if code is None:
            said: dict[str, Any] = {"end": "compile_error"}
        else:
            pid = os.fork()
            if pid == 0:
                os.dup2(os.open(os.devnull, os.O_RDONLY), control.detach())
                return (code, json.loads(message)["cpu_s"], *pipes)
            said = waited(pid)
        for pipe in pipes:
            os.close(pipe)
        control.send(json.dumps(said).encode())


def compiled(solution: str) -> CodeType | None:
    try:
        with open(solution, "rb") as file:
            return compile(file.read(), solution, "exec", dont_inherit=True)
    except Exception:
        return None


def waited(pid: int) -> dict[str, Any]:
    _, status, usage = os.wait4(pid, 0)
    # Ends what it left behind: all processes except this one and the PID namespace's first.
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    return {"end": "exited", "exit_code": code, "cpu_s": usage.ru_utime + usage.ru_stime}


def confine(cpu_s: int, memory_bytes: int) -> None:
    """Gives this process limits, a session and a directory of its own."""
    os.setsid()
    directory = os.path.join("/tmp", os.urandom(8).hex())
    os.mkdir(directory)
    os.chdir(directory)
    limit(resource.RLIMIT_CPU, cpu_s)
    limit(resource.RLIMIT_AS, memory_bytes)
    limit(resource.RLIMIT_FSIZE, FILE_BYTES)
    limit(resource.RLIMIT_CORE, 0)
    if resource.getrlimit(resource.RLIMIT_NPROC)[0] != resource.RLIM_INFINITY:
        limit(resource.RLIMIT_NPROC, PROCESSES)


def limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def open_streams(stdin: int, stdout: int) -> None:
    os.dup2(stdin, 0)
    os.dup2(stdout, 1)
    os.close(stdin)
    os.close(stdout)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115


def find(names: dict[str, Any], function: str) -> Any:
    """Returns the method of a class `Solution` if there is one, else the program's function."""
    solution = names.get("Solution", object)
    return getattr(solution(), function) if hasattr(solution, function) else names[function]


if __name__ == "__main__":
    if os.getppid() != 1:
        sys.exit("not in a PID namespace of its own, where it may kill all other processes")
    main(json.loads(sys.argv[1]))
