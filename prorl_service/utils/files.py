"""Directories for temporary files that a later process removes if this one was killed.

Each is named after the process that made it: its id and when it began, for ids are used again.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

_PREFIX = "prorl-tmp"
_START_TIME = 19
"""Place after the name of the program in /proc/PID/stat: clock ticks since the machine started."""


def temporary_directory(purpose: str) -> Path:
    """Its maker removes it; `remove_stale_tempdirs` does if the maker could not."""
    return Path(tempfile.mkdtemp(prefix=f"{_prefix_of(os.getpid())}-{purpose}-"))


@cache  # asked for with every sandbox
def _prefix_of(pid: int) -> str:
    return f"{_PREFIX}-{pid}-{_began_at(pid)}"


def remove_stale_tempdirs() -> None:
    """Remove those of this user's processes that live no more."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-*-*-*"):
        with suppress(OSError, ValueError):
            pid, began_at = map(int, path.name.removeprefix(f"{_PREFIX}-").split("-")[:2])
            if path.stat().st_uid == os.geteuid() and _began_at(pid) != began_at:
                shutil.rmtree(path, ignore_errors=True)


def _began_at(pid: int) -> int | None:
    """None: there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None
    return int(stat.rpartition(")")[2].split()[_START_TIME])


def write_whole(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Over what is there, in one step. Not synced: a crash of the machine may lose it. `mode` is
    cut by the umask. Raises `OSError`."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    unfinished.replace(path)
