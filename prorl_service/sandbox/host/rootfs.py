"""The file system of bubblewrap sandboxes, as arguments of `bwrap`.

Nothing here is writable: each sandbox mounts its writable directories over it (`execd.namespaces`).
The root directory and /dev are in memory, and made read-only last.
"""

import os
from pathlib import Path

from prorl_service.sandbox import programs
from prorl_service.sandbox.host import bundle

WORKDIR = "/workspace"

HOST_ETC = ("alternatives", "ld.so.cache")
"""Files of the host without which some programs of /usr do not start."""

DIRECTORIES = ("/etc", "/run", "/var", "/tmp", WORKDIR)
"""Directories that are made first: only root could enter those made as parents of a mount."""


def arguments(runtime: Path) -> list[str]:
    return [
        *_host_programs(),
        *(item for path in DIRECTORIES for item in ("--perms", "0755", "--dir", path)),
        *_etc(runtime),
        *_read_only(runtime, bundle.INSIDE),
        *_read_only(programs.directory(), bundle.PROGRAMS_INSIDE),
        *("--proc", "/proc", "--dev", "/dev", "--symlink", "/tmp", "/var/tmp"),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"),
    ]


def _host_programs() -> list[str]:
    """Binds /usr, and what merged systems link into it and others have as directories."""
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
