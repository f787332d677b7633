"""Files that readers find whole or not at all, and directories for temporary files.

A directory is named after the process that made it, by id and start: a later process removes it if
this one was killed.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from prorl_service.utils import processes

_PREFIX = "prorl-tmp"


def temporary_directory(purpose: str) -> Path:
    """Its maker removes it; `remove_stale_tempdirs` does if the maker could not."""
    return Path(tempfile.mkdtemp(prefix=f"{_prefix_of(os.getpid())}-{purpose}-"))


@cache  # asked for with every sandbox
def _prefix_of(pid: int) -> str:
    return f"{_PREFIX}-{pid}-{processes.start_time(pid)}"


def remove_stale_tempdirs() -> None:
    """Remove those of this user's processes that live no more."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-*-*-*"):
        with suppress(OSError, ValueError):
            pid, started = path.name.removeprefix(f"{_PREFIX}-").split("-")[:2]
            if path.stat().st_uid == os.geteuid() and not processes.is_running(int(pid), started):
                shutil.rmtree(path, ignore_errors=True)


def write_whole(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Over what is there, in one step. Not synced: a crash of the machine may lose it. `mode` is
    cut by the umask. Raises `OSError`."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    unfinished.replace(path)
