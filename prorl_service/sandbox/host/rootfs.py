"""What bubblewrap sandboxes have as their file system, as arguments of `bwrap`.

Nothing here is writable: what is, each sandbox mounts over it (`execd.namespaces`). The root
directory and /dev are made read-only last, since they are memory.
"""

import os
from pathlib import Path

from prorl_service.sandbox.host import bundle

WORKDIR = "/workspace"

HOST_ETC = ("alternatives", "ld.so.cache")
"""Without these some programs of /usr do not start."""

DIRECTORIES = ("/etc", "/run", "/var", "/tmp", WORKDIR)
"""Made first: as parents of a mount they would be closed to everyone but root."""


def arguments(runtime: Path) -> list[str]:
    return [
        *_host_programs(),
        *(item for path in DIRECTORIES for item in ("--perms", "0755", "--dir", path)),
        *_etc(runtime),
        *_read_only(runtime, bundle.INSIDE),
        *("--proc", "/proc", "--dev", "/dev", "--symlink", "/tmp", "/var/tmp"),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"),
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


def _etc(runtime: Path) -> list[str]:
    arguments = []
    for path in sorted((runtime / "etc").iterdir()):
        arguments += _read_only(path, f"/etc/{path.name}")
    for name in HOST_ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return arguments


def _read_only(source: Path | str, inside: str | None = None) -> list[str]:
    return ["--ro-bind", str(source), inside or str(source)]
