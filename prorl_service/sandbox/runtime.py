"""How an execution server is told what to be: its limits, and the variables it hands on."""

import platform
from typing import Any

from prorl_service.sandbox import portable
from prorl_service.sandbox.base import SandboxLimits

HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OPEN_FILES = 4096

SERVE = "from execd.server import main; main(sys.argv[1])"
"""The program of an execution server; its argument is the JSON of `config`."""


def config(
    limits: SandboxLimits,
    *,
    workdir: str,
    user: int | None,
    own_processes: bool,
    runtime: str = portable.INSIDE,
) -> dict[str, Any]:
    """The arguments of `execd.server.serve`.

    `own_processes`: it has a PID and a user namespace to itself. Only there can processes be
    counted (since Linux 5.14), and their memory be added up: anywhere else they would be all
    processes of the service's user.
    """
    rlimits = {
        "CORE": 0,
        "DATA": limits.memory_mb << 20,
        "FSIZE": limits.file_mb << 20,
        "NOFILE": OPEN_FILES,
    }
    if own_processes and _kernel_version() >= (5, 14):
        rlimits["NPROC"] = limits.processes
    return {
        "workdir": workdir,
        "user": user,
        "rlimits": rlimits,
        "memory_bytes": limits.memory_mb << 20 if own_processes else None,
        "output_bytes": limits.output_bytes,
        "file_bytes": limits.file_mb << 20,
        "kernel": portable.kernel(runtime),
    }


def environment(*, home: str, user: str = "agent") -> dict[str, str]:
    """Variables of every sandbox. None are inherited from the service: its own hold secrets.

    Programs are told not to page, prompt or colour.
    """
    return {
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "DEBIAN_FRONTEND": "noninteractive",
        "PIP_NO_INPUT": "1",
    }


def host_environment(*, home: str, runtime: str = portable.INSIDE) -> dict[str, str]:
    """All variables where the programs are the host's.

    The service's Python comes last in PATH, so that there always is one.
    """
    return {"PATH": f"{HOST_PATH}:{runtime}/bin", **environment(home=home)}


def _kernel_version() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
