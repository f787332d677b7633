"""The configuration of an execution server: its namespaces, limits and variables."""

import platform
from typing import Any

from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.host import bundle, seccomp
from prorl_service.utils import descriptors

HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OPEN_FILES = 1024
"""Open files per process, at most half of the service's own limit. The kernel counts descriptors in
flight per user: with fewer than its zygote, a sandbox cannot prevent the next start."""
SIGNALS = 1024
"""Pending signals, of which a POSIX timer takes one. A host has thousands per user."""
MESSAGE_QUEUE_BYTES = 1 << 17
"""Bytes of POSIX message queues; most hosts have 800 KB per user."""

ZYGOTE = "from execd.zygote import main; main()"
ZYGOTE_AT_DOOR = "from execd.zygote import main_at_door; main_at_door()"
PROBE = "from execd.zygote import probe; probe(sys.argv[1])"
PROBE_AT_DOOR = "from execd.zygote import probe_at_door; probe_at_door(sys.argv[1])"
"""Programs that try what `ZYGOTE` will do; their argument is the JSON of `namespaces`."""


def isolated(
    limits: SandboxLimits, namespaces: dict[str, Any], environment: dict[str, str]
) -> dict[str, object]:
    """Returns what `execd.zygote` calls an order, for a sandbox in namespaces of its own."""
    return {
        "namespaces": namespaces,
        "environment": environment,
        "filter": seccomp.program().hex(),
        "serve": config(limits, workdir=namespaces["workdir"], own_processes=True),
    }


def namespaces(
    limits: SandboxLimits, *, workdir: str, user: int | str, of_image: bool
) -> dict[str, Any]:
    """Returns the arguments of `execd.namespaces.enter`."""
    return {"workdir": workdir, "disk_mb": limits.disk_mb, "user": user, "of_image": of_image}


def config(
    limits: SandboxLimits,
    *,
    workdir: str,
    own_processes: bool,
    runtime: str = bundle.INSIDE,
) -> dict[str, Any]:
    """Returns the arguments of `execd.server.serve`.

    `own_processes` means PID and user namespaces of its own. Processes, pending signals and message
    queues can be counted (since Linux 5.14) and memory added up only there: elsewhere they would be
    those of all processes of the service's user.
    """
    rlimits = {
        "CORE": 0,
        "DATA": limits.memory_mb << 20,
        "FSIZE": limits.file_mb << 20,
        "NOFILE": min(OPEN_FILES, descriptors.most() // 2),
    }
    if own_processes and _kernel_version() >= (5, 14):  # counted for each user namespace
        rlimits["NPROC"] = limits.processes
        rlimits["SIGPENDING"] = SIGNALS
        rlimits["MSGQUEUE"] = MESSAGE_QUEUE_BYTES
    return {
        "workdir": workdir,
        "rlimits": rlimits,
        "memory_bytes": limits.memory_mb << 20 if own_processes else None,
        "output_bytes": limits.output_bytes,
        "file_bytes": limits.file_mb << 20,
        "kernel": bundle.kernel(runtime),
    }


def environment(*, home: str, user: str = "agent") -> dict[str, str]:
    """Returns the variables of every sandbox. The service's own are left out: they hold secrets.

    They stop programs from paging, prompting and colouring. Text is UTF-8; the rest of the locale
    is not set, because it would make every program open a dozen files.
    """
    return {
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "LC_CTYPE": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "DEBIAN_FRONTEND": "noninteractive",
        "PIP_NO_INPUT": "1",
    }


def host_environment(*, home: str, runtime: str = bundle.INSIDE) -> dict[str, str]:
    """Returns all variables of a sandbox with the host's programs.

    The service's Python comes last in PATH, so that there always is one.
    """
    return {"PATH": f"{HOST_PATH}:{runtime}/bin", **environment(home=home)}


def _kernel_version() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
