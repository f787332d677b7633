"""What a bubblewrap sandbox sees as its file system, as arguments of `bwrap`.

Nothing here is writable but /workspace, /tmp and /dev/shm, which live in memory and end with the
sandbox. The root directory and /dev are made read-only last, since they too are memory.
"""

import os
from pathlib import Path

from prorl_service.sandbox import portable
from prorl_service.sandbox.base import SandboxLimits

WORKDIR = "/workspace"
SHARED_MEMORY_MB = 64

ETC = Path(__file__).parent / "etc"
HOST_ETC = ("alternatives", "ld.so.cache")
"""Without these some programs of /usr do not start."""

DIRECTORIES = ("/etc", "/run", "/var")
"""Made first: as parents of a mount they would be closed to everyone but root."""


def arguments(limits: SandboxLimits, runtime: Path) -> list[str]:
    temporary_mb = max(1, limits.disk_mb // 4)
    return [
        *_host_programs(),
        *(item for path in DIRECTORIES for item in ("--perms", "0755", "--dir", path)),
        *_etc(),
        *_read_only(runtime, portable.INSIDE),
        *("--proc", "/proc", *_read_only("/proc/sys"), "--dev", "/dev"),
        *_memory("/dev/shm", SHARED_MEMORY_MB, "1777"),
        *_memory("/tmp", temporary_mb, "1777"),
        *_memory(WORKDIR, max(1, limits.disk_mb - temporary_mb), "0755"),
        *("--symlink", "/tmp", "/var/tmp"),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", WORKDIR),
    ]


def _host_programs() -> list[str]:
    """/usr, and what are links into it on merged systems and directories of their own elsewhere."""
    arguments = _read_only("/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            arguments += _read_only(path)
    return arguments


def _etc() -> list[str]:
    arguments = []
    for path in sorted(ETC.iterdir()):
        arguments += _read_only(path, f"/etc/{path.name}")
    for name in HOST_ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return arguments


def _read_only(source: Path | str, inside: str | None = None) -> list[str]:
    return ["--ro-bind", str(source), inside or str(source)]


def _memory(inside: str, size_mb: int, mode: str) -> list[str]:
    return ["--perms", mode, "--size", str(size_mb << 20), "--tmpfs", inside]
