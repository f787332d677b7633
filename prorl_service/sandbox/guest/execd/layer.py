"""A sandbox's written files: saved as a tar, and put on top of another sandbox's files.

The tar has the entries that `tar` has, and marks what was deleted as layers of OCI images do: an
empty file `.wh.NAME`, and `.wh..wh..opq` in a directory that hides the image's. Restoring is for a
sandbox of the untouched image: names are taken as they are, except that none leaves the root and
that what `Guard` refuses is left out. Files that were one file by several names are so again.
"""

import errno
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from typing import Any, BinaryIO

from .files import NEVER_WAIT
from .guard import Guard
from .namespaces import Written
from .request import Request
from .tar import Bounded, TreeSaving, add_entry
from .worker import in_worker

DELETED = ".wh."
OPAQUE = ".wh..wh..opq"
_OPAQUE_ATTRIBUTE = "user.overlay.opaque"
_READ_ONLY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | NEVER_WAIT
ROOT = os.O_RDONLY | os.O_DIRECTORY
MOST_REFUSED = 10_000
"""Maximum of roots that an answer names; further ones count for the last."""


def save_layer(written: Sequence[Written], request: Request) -> None:
    if not written:
        request.fail("this kind of sandbox does not know what was written in it")
        return
    in_worker(request, partial(_save, written, request.arguments["max_bytes"]))


def restore_layer(written: Sequence[Written], request: Request) -> None:
    """Answers with what was refused: numbers of files by roots that hold them, as JSON."""
    guard = Guard(**request.arguments["guard"])
    in_worker(request, partial(_restore, request.payload, guard, written))


def _save(written: Sequence[Written], max_bytes: int, out: BinaryIO) -> None:
    with tarfile.open(fileobj=Bounded(out, max_bytes), mode="w|") as tar:  # type: ignore[call-overload]
        saving = _LayerSaving(tar)
        for root in written:
            directory = os.open(".", _READ_ONLY, dir_fd=root.directory)
            saving.add_directory(directory, f"{root.prefix}/" if root.prefix else "")


class _LayerSaving(TreeSaving):
    skipped = (FileNotFoundError, PermissionError)

    def __init__(self, tar: tarfile.TarFile) -> None:
        super().__init__(tar)
        self._names: dict[tuple[int, int], str] = {}
        """First names in the tar of files with several, by device and inode."""

    def _begin(self, directory: int, prefix: str) -> None:
        if _is_opaque(directory):
            self._tar.addfile(self._tar.tarinfo(prefix + OPAQUE))

    def _add_other(self, status: os.stat_result, directory: int, name: str, prefix: str) -> None:
        file = (status.st_dev, status.st_ino)
        if stat.S_ISCHR(status.st_mode):
            self._tar.addfile(self._tar.tarinfo(prefix + DELETED + name))
        elif file in self._names:
            info = self._tar.tarinfo(prefix + name)
            info.type, info.linkname = tarfile.LNKTYPE, self._names[file]
            self._tar.addfile(info)
        else:
            add_entry(self._tar, directory, name, prefix)
            if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
                self._names[file] = prefix + name


def _is_opaque(directory: int) -> bool:
    try:
        return os.getxattr(directory, _OPAQUE_ATTRIBUTE) == b"y"
    except OSError:
        return False


# --- on top of another sandbox's files ------------------------------------------------------------


def _restore(content: bytes, guard: Guard, written: Sequence[Written], out: BinaryIO) -> None:
    try:
        with tarfile.open(fileobj=BytesIO(content), mode="r:") as tar:
            restoring = _Restoring(tar, guard, written)
            for entry in tar:
                restoring.put(entry)
    except tarfile.TarError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    out.write(json.dumps(restoring.refused).encode())


def _parts(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    if ".." in parts or "" in parts:
        raise OSError(errno.EPERM, "a name that leaves the root")
    return parts


class _Restoring:
    """One piece of a layer."""

    def __init__(self, tar: tarfile.TarFile, guard: Guard, written: Sequence[Written]) -> None:
        self._tar = tar
        self._guard = guard
        self._written = written
        self._refused_files: dict[str, tarfile.TarInfo] = {}
        self.refused: dict[str, int] = {}

    def put(self, entry: tarfile.TarInfo) -> None:
        parts = _parts(entry.name)
        name, deleted = parts[-1], parts[-1].startswith(DELETED)
        if name == OPAQUE:
            self._empty("/".join(parts[:-1]))
            return
        path = "/".join([*parts[:-1], name.removeprefix(DELETED) if deleted else name])
        target = entry.linkname if entry.issym() else None
        if self._guard.refuses(path, is_directory=entry.isdir(), target=target):
            if not entry.isdir():
                self._refuse(entry, path)
        elif deleted:
            self._delete(path)
        else:
            self._put(entry, path)

    def _refuse(self, entry: tarfile.TarInfo | None, path: str) -> None:
        root = self._guard.root_of(path)
        if root not in self.refused and len(self.refused) >= MOST_REFUSED:
            root = next(reversed(self.refused))
        self.refused[root] = self.refused.get(root, 0) + 1
        if entry is not None and entry.isreg():
            self._refused_files[path] = entry

    def _delete(self, path: str) -> None:
        with _directory(path.split("/")[:-1]) as parent:
            if parent is not None:
                _remove(parent, path.rpartition("/")[2])

    def _empty(self, path: str) -> None:
        if self._guard.refuses(f"{path}/{OPAQUE}"):
            self._refuse(None, path)
            return
        with _directory(path.split("/")) as directory:
            names = [] if directory is None else os.listdir(directory)
        for name in names:
            if self._guard.refuses(f"{path}/{name}"):
                self._refuse(None, f"{path}/{name}")
            else:
                self._delete(f"{path}/{name}")

    def _put(self, entry: tarfile.TarInfo, path: str) -> None:
        """Writes a file, link or directory, and makes the directories that it is in."""
        with _directory(path.split("/")[:-1], make=True) as parent:
            if parent is None:
                self._refuse(entry, path)
            elif entry.islnk():
                self._link(entry, parent, path)
            else:
                _write(self._tar, entry, parent, path.rpartition("/")[2])

    def _link(self, entry: tarfile.TarInfo, parent: int, path: str) -> None:
        """Gives a file that was restored before another name. If the guard refused only its first
        name, it becomes a file of its own; for that, both must be in one piece of the layer."""
        first, name = "/".join(_parts(entry.linkname)), path.rpartition("/")[2]
        refused = self._refused_files.get(first)
        if refused is not None:
            _write(self._tar, refused, parent, name)
        elif not _is_written(self._written, first):
            self._refuse(None, path)
        else:
            _remove(parent, name)
            os.link(f"/{first}", name, dst_dir_fd=parent, follow_symlinks=False)


def _is_written(written: Sequence[Written], path: str) -> bool:
    """Returns whether it is a file, and not the image's: the guard let it pass under this name."""
    roots = [one for one in written if not one.prefix or path.startswith(f"{one.prefix}/")]
    if not roots:
        return False
    root = max(roots, key=lambda one: len(one.prefix))
    inside = path.removeprefix(root.prefix).strip("/").split("/")
    with _directory(inside[:-1], root.directory) as directory:
        if directory is None:
            return False
        with suppress(FileNotFoundError):
            status = os.stat(inside[-1], dir_fd=directory, follow_symlinks=False)
            return stat.S_ISREG(status.st_mode)
    return False


@contextmanager
def _directory(
    parts: list[str], root: int | None = None, *, make: bool = False
) -> Iterator[int | None]:
    """Opens a directory below `root`, without following links. None if it is not there."""
    directory = os.open("/", ROOT) if root is None else os.open(".", ROOT, dir_fd=root)
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=directory)
            inner = os.open(part, _READ_ONLY, dir_fd=directory)
            os.close(directory)
            directory = inner
    except OSError as error:
        os.close(directory)
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        yield None
        return
    try:
        yield directory
    finally:
        os.close(directory)


def _remove(directory: int, name: str) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)


def _write(tar: tarfile.TarFile, entry: tarfile.TarInfo, parent: int, name: str) -> None:
    if entry.isdir():
        _make_directory(parent, name)
    else:
        _remove(parent, name)
    if entry.issym():
        os.symlink(entry.linkname, name, dir_fd=parent)
        return
    at: dict[str, Any] = {"dir_fd": parent}
    if entry.isreg():
        _write_file(tar, entry, parent, name)
    os.chmod(name, entry.mode, **at)
    os.utime(name, (entry.mtime, entry.mtime), **at)


def _make_directory(parent: int, name: str) -> None:
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        os.mkdir(name, dir_fd=parent)
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=parent)
        os.mkdir(name, dir_fd=parent)


def _write_file(tar: tarfile.TarFile, entry: tarfile.TarInfo, parent: int, name: str) -> None:
    source = tar.extractfile(entry)
    assert source is not None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(name, flags, 0o600, dir_fd=parent), "wb") as target:
        shutil.copyfileobj(source, target, 1 << 18)
