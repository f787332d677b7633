"""Trees of installed files: made next to their places, their digests, size, and who may read them.

A maker holds a lock on its unfinished tree: a sweep removes only what a killed process left. What a
client that outlives its maker writes there is removed by the next sweep.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MANIFEST = "harness.sha256"
RECORD = "harness.json"
_OWN = (MANIFEST, RECORD)


def digests(tree: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file by its path; a link's is that of its target's name."""
    found = {}
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree).as_posix()
        if name in _OWN:
            continue
        if path.is_symlink():
            found[name] = hashlib.sha256(str(path.readlink()).encode()).hexdigest()
        elif path.is_file():
            with path.open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def digest_of(files: dict[str, str]) -> str:
    """Returns the digest of a whole tree."""
    return hashlib.sha256(_lines(files).encode()).hexdigest()


def write(tree: Path, files: dict[str, str]) -> None:
    (tree / MANIFEST).write_text(_lines(files))


def read(tree: Path) -> dict[str, str]:
    """Returns what `write` wrote; nothing if it is gone."""
    try:
        lines = (tree / MANIFEST).read_text().split("\n")
    except OSError:
        return {}
    return {path: digest for digest, _, path in (line.partition("  ") for line in lines) if path}


def make_readable(tree: Path) -> None:
    """Lets everyone read the tree, since sandboxes may run as another user."""
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0))


def size_mb(tree: Path) -> int:
    files = (path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    return round(sum(path.stat().st_size for path in files) / 1e6)


def _lines(files: dict[str, str]) -> str:
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(files.items()))


PREFIX = ".making-"


@contextmanager
def making(parent: Path) -> Iterator[Path]:
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
