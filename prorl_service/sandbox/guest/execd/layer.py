"""What was written in a sandbox, as a tar, and on top of another sandbox's files.

The tar has the entries that `tar` has, and marks what was deleted as layers of OCI images do: an
empty file `.wh.NAME`, and `.wh..wh..opq` in a directory that hides the image's. Restoring is for a
sandbox in which nothing has run yet: names are taken as they are, except that none leaves the root
and that what `Guard` refuses is left out. Hard links become files of their own.
"""

import errno
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any, BinaryIO

from .files import NEVER_WAIT
from .guard import Guard
from .namespaces import Written
from .request import Request
from .tar import MAX_DEPTH, Bounded, add_entry
from .worker import in_worker

DELETED = ".wh."
OPAQUE = ".wh..wh..opq"
_OPAQUE_ATTRIBUTE = "user.overlay.opaque"
_READ_ONLY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | NEVER_WAIT
ROOT = os.O_RDONLY | os.O_DIRECTORY


def save_layer(written: Sequence[Written], request: Request) -> None:
    if not written:
        request.fail("this kind of sandbox does not know what was written in it")
        return
    in_worker(request, partial(_save, written, request.arguments["max_bytes"]))


def restore_layer(request: Request) -> None:
    """Answers with the names of what was refused, as JSON."""
    guard = Guard(**request.arguments["guard"])
    in_worker(request, partial(_restore, request.payload, guard))


def _save(written: Sequence[Written], max_bytes: int, out: BinaryIO) -> None:
    with tarfile.open(fileobj=Bounded(out, max_bytes), mode="w|") as tar:  # type: ignore[call-overload]
        for root in written:
            directory = os.open(".", _READ_ONLY, dir_fd=root.directory)
            _add_directory(tar, directory, f"{root.prefix}/" if root.prefix else "", MAX_DEPTH)


def _add_directory(tar: tarfile.TarFile, directory: int, prefix: str, depth: int) -> None:
    """Adds what a directory holds. Closes it."""
    try:
        if not depth:
            raise OSError(errno.ELOOP, "nested too deeply")
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries)
        if _is_opaque(directory):
            tar.addfile(tar.tarinfo(prefix + OPAQUE))
        for name in names:
            with suppress(FileNotFoundError, PermissionError):
                _add(tar, directory, name, prefix, depth)
    finally:
        os.close(directory)


def _add(tar: tarfile.TarFile, directory: int, name: str, prefix: str, depth: int) -> None:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISCHR(status.st_mode):
        tar.addfile(tar.tarinfo(prefix + DELETED + name))
    elif stat.S_ISDIR(status.st_mode):
        inner = os.open(name, _READ_ONLY, dir_fd=directory)
        add_entry(tar, directory, name, prefix)
        _add_directory(tar, inner, f"{prefix}{name}/", depth - 1)
    else:
        add_entry(tar, directory, name, prefix)


def _is_opaque(directory: int) -> bool:
    try:
        return os.getxattr(directory, _OPAQUE_ATTRIBUTE) == b"y"
    except OSError:
        return False


# --- on top of another sandbox's files ------------------------------------------------------------


def _restore(content: bytes, guard: Guard, out: BinaryIO) -> None:
    refused: list[str] = []
    try:
        with tarfile.open(fileobj=BytesIO(content), mode="r:") as tar:
            for entry in tar:
                _put(tar, entry, guard, refused)
    except tarfile.TarError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    out.write(json.dumps(refused).encode())


def _put(tar: tarfile.TarFile, entry: tarfile.TarInfo, guard: Guard, refused: list[str]) -> None:
    parts = entry.name.strip("/").split("/")
    if ".." in parts or "" in parts:
        raise OSError(errno.EPERM, "a name that leaves the root")
    name, deleted = parts[-1], parts[-1].startswith(DELETED)
    if deleted and name != OPAQUE:
        name = name.removeprefix(DELETED)
    path = "/".join([*parts[:-1], name])
    parent = _parent(parts[:-1])
    if parent is None:
        refused.append(path)
        return
    try:
        if name == OPAQUE:
            _empty(parent, "/".join(parts[:-1]), guard, refused)
        elif guard.refuses(path, _content(tar, entry), is_directory=entry.isdir()):
            refused.append(path)
        elif deleted:
            _remove(parent, name)
        else:
            _write(tar, entry, parent, name)
    finally:
        os.close(parent)


def _parent(parts: list[str]) -> int | None:
    """Opens a directory without following links. None if it is not there: it was refused."""
    directory = os.open("/", ROOT)
    for part in parts:
        try:
            inner = os.open(part, _READ_ONLY, dir_fd=directory)
        except (FileNotFoundError, NotADirectoryError, OSError) as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return None
        finally:
            os.close(directory)
        directory = inner
    return directory


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    """Returns the beginning of a file's content."""
    file = tar.extractfile(entry) if entry.isreg() else None
    return b"" if file is None else file.read(1 << 16)


def _empty(directory: int, path: str, guard: Guard, refused: list[str]) -> None:
    for name in os.listdir(directory):
        inside = f"{path}/{name}"
        if guard.refuses(inside, b"", is_directory=False):
            refused.append(inside)
        else:
            _remove(directory, name)


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
