"""Files that readers find whole or not at all, and temporary directories.

A directory's name holds the id and start time of the process that made it, so that a later process
can remove it if this one was killed.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TextIO

from prorl_service.utils import processes

_PREFIX = "prorl-tmp"


def temporary_directory(purpose: str) -> Path:
    """Makes a directory for its caller to remove; `remove_stale_tempdirs` covers killed callers."""
    return Path(tempfile.mkdtemp(prefix=f"{_prefix_of(os.getpid())}-{purpose}-"))


@cache  # called for every sandbox
def _prefix_of(pid: int) -> str:
    return f"{_PREFIX}-{pid}-{processes.start_time(pid)}"


def remove_stale_tempdirs() -> None:
    """Removes the temporary directories of this user's processes that have ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}-*-*-*"):
        with suppress(OSError, ValueError):
            pid, started = path.name.removeprefix(f"{_PREFIX}-").split("-")[:2]
            if path.stat().st_uid == os.geteuid() and not processes.is_running(int(pid), started):
                shutil.rmtree(path, ignore_errors=True)


def publish(made: Path, target: Path) -> None:
    """Renames a directory that may be made by several processes: that of the first one stays.
    Raises `OSError`."""
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def write_whole(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replaces the file in one step. Not synced: a crash of the machine may lose it. The umask
    applies to `mode`. Raises `OSError`."""
    with whole_file(path, mode=mode) as file:
        file.write(text)


@contextmanager
def whole_file(path: Path, *, mode: int = 0o666) -> Iterator[TextIO]:
    """Opens a file that replaces `path` when the block ends without an exception; otherwise as
    `write_whole`."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yield file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
