"""Files and directories into a sandbox and out of it, with modes and links, in bounded memory.

Into it: tars of at most `PIECE_BYTES`; a larger file continues in pieces. Out of it: one tar, which
is spooled to disk and not trusted. Owners are not kept: inside everything is root's.
"""

import asyncio
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import IO, Literal

from prorl_harbor import commands
from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import Sandbox

PIECE_BYTES = 16 << 20
NO_BOUND = 1 << 62
MESSAGES_BYTES = 4096
TRANSFER_TIMEOUT_S = 600.0
"""Seconds that one piece may take, or the whole way out."""

Kind = Literal["file", "directory"]


@dataclass(frozen=True, slots=True)
class Piece:
    content: bytes
    continues: str | None = None
    """Name of the file that it belongs to the end of; None for a tar."""


async def upload(sandbox: Sandbox, source: Path, target: str, kind: Kind) -> None:
    """Copies a file to `target`, or into it if it is a directory; of a directory what is in it.

    Raises `OSError` and `SandboxError`.
    """
    await asyncio.to_thread(_check_source, source, kind)
    pieces = _file_pieces(source, source.name) if kind == "file" else _tree_pieces(source)
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        await _put(sandbox, piece, target, kind)


async def _put(sandbox: Sandbox, piece: Piece, target: str, kind: Kind) -> None:
    path = f"/tmp/.prorl-{token_hex(8)}"
    await sandbox.upload(path, piece.content)
    if piece.continues is None:
        await _call(sandbox, "unpack", target, kind, piece=path)
    elif kind == "file":
        await _call(sandbox, "append", target, kind, piece=path, name=piece.continues)
    else:
        await _call(sandbox, "append", f"{target}/{piece.continues}", kind, piece=path)


async def _call(sandbox: Sandbox, operation: str, path: str, kind: Kind, **others: str) -> None:
    messages = bytearray()
    ended = await commands.call(
        sandbox,
        operation,
        timeout_s=TRANSFER_TIMEOUT_S,
        on_part=lambda _, data: messages.extend(data),
        output_bytes=MESSAGES_BYTES,
        path=path,
        kind=kind,
        **others,
    )
    _check(ended, path, messages)


def _check(ended: commands.Ended, path: str, messages: bytes | bytearray) -> None:
    if ended.timed_out:
        raise SandboxError(f"{path} was not copied within {TRANSFER_TIMEOUT_S:g} s")
    if ended.exit_code in (commands.FAILED, *range(128, 256)):
        raise SandboxError(f"{path} cannot be copied: {messages.decode(errors='replace').strip()}")
    if ended.exit_code:
        raise OSError(ended.exit_code, os.strerror(ended.exit_code), path)


async def download(
    sandbox: Sandbox, source: str, target: Path, kind: Kind, *, max_bytes: int
) -> list[str]:
    """Copies a file to `target`, or what is in a directory into it. Returns what was left out: what
    is no file, directory or link, links that lead up, and files that do not fit `max_bytes`.

    Raises `OSError` and `SandboxError`.
    """
    messages = bytearray()
    with tempfile.TemporaryFile() as spool:
        left = 2 * max_bytes + PIECE_BYTES  # what headers may take

        def take(stream: int, data: bytes) -> None:
            nonlocal left
            left -= len(data)
            if left < 0:
                raise SandboxError("the sandbox broke its protocol: a tar larger than agreed")
            if stream:
                del messages[: max(0, len(messages) - MESSAGES_BYTES)]
                messages.extend(data)
            else:
                spool.write(data)

        ended = await commands.call(
            sandbox,
            "pack",
            timeout_s=TRANSFER_TIMEOUT_S,
            on_part=take,
            output_bytes=NO_BOUND,
            path=source,
            kind=kind,
            max_bytes=max_bytes,
        )
        _check(ended, source, messages)
        spool.seek(0)
        extract = _extract_file if kind == "file" else _extract
        refused = await asyncio.to_thread(extract, spool, target)
    return [*messages.decode(errors="replace").splitlines(), *refused]


# --- into a sandbox, in threads -----------------------------------------------------------------


def _check_source(source: Path, kind: Kind) -> None:
    if not (source.is_file() if kind == "file" else source.is_dir()):
        raise FileNotFoundError(f"Source {kind} not found: {source}")


class _Tar:
    """A tar that is being filled."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w")  # noqa: SIM115
        self.size = 0
        self.is_empty = True

    def add(self, path: Path, name: str, file: IO[bytes] | None = None) -> None:
        """Adds an entry, with the first `PIECE_BYTES` of a file."""
        status = path.stat() if file else path.lstat()
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        if file is not None:
            content = file.read(PIECE_BYTES)
            info.size = len(content)
            self._tar.addfile(info, io.BytesIO(content))
        elif stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            self._tar.addfile(info)
        else:
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
            self._tar.addfile(info)
        self.size = self._buffer.tell()
        self.is_empty = False

    def done(self) -> Piece:
        self._tar.close()
        return Piece(self._buffer.getvalue())


def _file_pieces(path: Path, name: str) -> Iterator[Piece]:
    tar = _Tar()
    with path.open("rb") as file:
        tar.add(path, name, file)
        yield tar.done()
        yield from _rest(file, name)


def _rest(file: IO[bytes], name: str) -> Iterator[Piece]:
    while content := file.read(PIECE_BYTES):
        yield Piece(content, name)


def _tree_pieces(root: Path) -> Iterator[Piece]:
    """Yields a piece even for an empty directory, which is to be made, too."""
    tar = _Tar()
    for path, name in _entries(root):
        if path.is_symlink() or path.is_dir():
            tar.add(path, name)
        elif path.is_file():
            with path.open("rb") as file:
                tar.add(path, name, file)
                if file.tell() == PIECE_BYTES:
                    yield tar.done()
                    tar = _Tar()
                    yield from _rest(file, name)
        if tar.size >= PIECE_BYTES:
            yield tar.done()
            tar = _Tar()
    yield tar.done()


def _entries(root: Path) -> Iterator[tuple[Path, str]]:
    """Yields paths and names below `root`, directories before what is in them."""
    for directory, directories, files in os.walk(root):
        directories.sort()
        for name in sorted([*directories, *files]):
            path = Path(directory, name)
            yield path, str(path.relative_to(root))


# --- out of a sandbox, in threads ---------------------------------------------------------------


def _extract(spool: IO[bytes], target: Path) -> list[str]:
    target.mkdir(parents=True, exist_ok=True)
    refused = []
    with _read(spool) as tar:
        for member in tar:
            try:
                if _is_harmless(member):
                    tar.extract(member, target, filter="data")
                    continue
                reason = "it leads out of the directory"
            except (tarfile.FilterError, OSError) as error:
                reason = str(error)
            refused.append(f"left out {member.name}: {reason}")
    return refused


def _is_harmless(member: tarfile.TarInfo) -> bool:
    """Returns whether an entry stays below its directory, whatever other entries are."""
    if member.issym():
        return not member.linkname.startswith("/") and ".." not in member.linkname.split("/")
    return member.isreg() or member.isdir()


def _extract_file(spool: IO[bytes], target: Path) -> list[str]:
    target.parent.mkdir(parents=True, exist_ok=True)
    with _read(spool) as tar:
        member = tar.next()
        content = None if member is None else tar.extractfile(member)
        if member is None or content is None:
            raise OSError(f"{target.name} was not sent: it is not a file, or too large")
        with target.open("wb") as file:
            while data := content.read(1 << 20):
                file.write(data)
        target.chmod(member.mode & 0o777 | 0o600)
    return []


def _read(spool: IO[bytes]) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=spool, mode="r:")
    except tarfile.TarError as error:
        raise SandboxError(f"the sandbox broke its protocol: no tar: {error}") from None
