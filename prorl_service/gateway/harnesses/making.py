"""Directories for unfinished trees, next to the finished ones: removed at the end, or by a sweep.

A maker holds a lock on its directory: a sweep removes only what a killed process left. What a
client that outlives its maker writes there is removed by the next sweep.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = ".making-"


@contextmanager
def directory(parent: Path) -> Iterator[Path]:
    """A new directory in `parent`, removed at the end unless it was `put` elsewhere."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def put(tree: Path, at: Path) -> None:
    """Renames a finished tree, unless another process has put the same one there already."""
    try:
        tree.rename(at)
    except OSError:
        if not at.is_dir():
            raise


def sweep(parent: Path) -> None:
    """Removes the directories of processes that were killed."""
    for path in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another sweep is faster, or the maker is still at work
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(lock)
