"""What an execution server is started with: its source, a Python, its configuration, its variables.

The same for every kind of sandbox; where the files are seen from inside is the kind's business.
"""

import compileall
import json
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ptyprocess

from prorl_service.sandbox import execd
from prorl_service.sandbox.base import SandboxLimits

PYTHON_PREFIX = Path(sys.base_prefix)
PYTHON_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
EXECD = Path(execd.__path__[0])
PTYPROCESS = Path(ptyprocess.__path__[0])

SANDBOX_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OPEN_FILES = 4096

_BOOT = (
    "import sys; sys.path += sys.argv[1].split(':'); from execd.server import main; "
    "main(sys.argv[2])"
)


def compile_execd() -> None:
    """Byte-compile it where that is possible: it is mostly read from read-only mounts."""
    compileall.compile_dir(EXECD, quiet=2)


def command(python: str, source_directories: Iterable[str], config: dict[str, Any]) -> list[str]:
    """It looks at neither the environment nor site-packages, which is faster and safer."""
    return [python, "-I", "-S", "-c", _BOOT, ":".join(source_directories), json.dumps(config)]


def config(
    limits: SandboxLimits, *, workdir: str, user: int | None, count_processes: bool
) -> dict[str, Any]:
    """The arguments of `execd.server.serve`.

    Processes can be counted per sandbox only in a user namespace of its own, since Linux 5.14;
    anywhere else the limit would count all processes of the service's user.
    """
    rlimits = {
        "CORE": 0,
        "DATA": limits.memory_mb << 20,
        "FSIZE": limits.file_mb << 20,
        "NOFILE": OPEN_FILES,
    }
    if count_processes and _kernel_version() >= (5, 14):
        rlimits["NPROC"] = limits.processes
    return {
        "workdir": workdir,
        "user": user,
        "rlimits": rlimits,
        "output_bytes": limits.output_bytes,
        "file_bytes": limits.file_mb << 20,
    }


def environment(*, home: str, python_prefix: str) -> dict[str, str]:
    """All variables a sandbox sees. None are inherited: the service's hold secrets.

    Programs are told not to page, prompt or colour. The service's Python comes last in PATH, so
    that there always is one.
    """
    return {
        "PATH": f"{SANDBOX_PATH}:{python_prefix}/bin",
        # For the execution server alone, which takes it out: shared builds of Python need it.
        "LD_LIBRARY_PATH": f"{python_prefix}/lib",
        "HOME": home,
        "USER": "agent",
        "LOGNAME": "agent",
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


def _kernel_version() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])
