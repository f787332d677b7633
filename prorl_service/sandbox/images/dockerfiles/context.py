"""Build contexts: directories with a Dockerfile, stored as archives that references name by digest.

The archive depends on the content only: names are sorted, times and owners are zero, and of the
modes only whether the owner may execute counts, as in git. Blocking: call it in a thread.
"""

import io
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prorl_service.errors import TaskError
from prorl_service.sandbox.archives import load_archive, store_archive
from prorl_service.sandbox.images.dockerfiles.syntax import Dockerfile, parse

DOCKERFILE = "Dockerfile"
IGNORE_FILE = ".dockerignore"


@dataclass(frozen=True, slots=True)
class Context:
    """A build context that was unpacked."""

    directory: Path
    dockerfile: Dockerfile


def context_archive(directory: Path, dockerfile: Path | None = None) -> str:
    """Stores a directory with a Dockerfile. Returns its reference, `dockerfile:sha256:HEX`.

    `dockerfile` is another file to take for the Dockerfile. What .dockerignore names is left out.
    Raises `TaskError` if there is no Dockerfile, or for what is no file, directory or link.
    """
    text = _read(dockerfile or directory / DOCKERFILE)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, path in sorted(_members(directory), key=lambda member: member[0]):
            if name != DOCKERFILE:
                _add(tar, name, path)
        entry = tarfile.TarInfo(DOCKERFILE)
        entry.size, entry.mode = len(text), 0o644
        tar.addfile(entry, io.BytesIO(text))
    return f"dockerfile:{store_archive(buffer.getvalue())}"


def unpack(archive: str, into: Path, shown: str) -> Context:
    """Unpacks a stored context. Raises `TaskError` if it is missing or no context."""
    try:
        tar = load_archive(archive)
    except TaskError as error:
        hint = "store it where the service runs: `prorl images build NAME DIRECTORY`"
        raise TaskError(f"{shown}: {error}", hint=error.hint and hint) from error
    into.mkdir()
    try:
        with tarfile.open(fileobj=io.BytesIO(tar)) as members:
            # Writes nothing outside; links may point anywhere, as in Docker.
            members.extractall(into, filter="tar")
    except tarfile.TarError as error:
        raise TaskError(f"{shown}: its archive is no build context: {error}") from error
    if not (into / DOCKERFILE).is_file():
        raise TaskError(f"{shown}: its archive has no {DOCKERFILE}")
    text = (into / DOCKERFILE).read_text(errors="replace")
    return Context(into, parse(text))


def _read(path: Path) -> bytes:
    try:
        text = path.read_bytes()
        text.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {error}") from error
    return text


def _members(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yields what .dockerignore does not leave out, with names relative to the directory."""
    rules = directory / IGNORE_FILE
    is_ignored = ignored_by(rules.read_text(errors="replace") if rules.is_file() else "")
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = Path(parent, name)
            relative = str(path.relative_to(directory))
            if not is_ignored(relative):
                yield relative, path


def _add(tar: tarfile.TarFile, name: str, path: Path) -> None:
    entry = tarfile.TarInfo(name)
    executable = path.lstat().st_mode & 0o100
    if path.is_symlink():
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
        tar.addfile(entry)
    elif path.is_dir():
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
    elif path.is_file():
        entry.size, entry.mode = path.stat().st_size, 0o755 if executable else 0o644
        with path.open("rb") as file:
            tar.addfile(entry, file)
    else:
        raise TaskError(f"{path} is no file, directory or symbolic link: remove it")


def ignored_by(text: str) -> Callable[[str], bool]:
    """Returns whether a path, relative to the context, is left out: the last pattern decides.

    What a directory's pattern leaves out are its files, too. The Dockerfile and .dockerignore stay.
    """
    lines = (line.strip() for line in text.splitlines())
    rules = [_rule(line) for line in lines if line and not line.startswith("#")]

    def is_ignored(path: str) -> bool:
        ignored = False
        for negated, pattern in rules:
            if pattern.fullmatch(path):
                ignored = not negated
        return ignored and path not in (IGNORE_FILE, DOCKERFILE)

    return is_ignored


def _rule(line: str) -> tuple[bool, re.Pattern[str]]:
    """Returns whether a line takes paths back in, and their pattern: `*` and `?` stop at slashes,
    `**` does not."""
    glob = re.sub(r"/+", "/", line.removeprefix("!").strip()).strip("/").removeprefix("./")
    parts = re.split(r"(\*\*/?|\*|\?|\[[^\]]*\]|\\.)", glob)
    expression = "".join(map(_expression, parts)) + ("(?:/.*)?" if glob != "." else "")
    return line.startswith("!"), re.compile(expression, re.DOTALL)


def _expression(part: str) -> str:
    match part:
        case "**/":
            return "(?:.*/)?"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
    if part.startswith("[") and part.endswith("]"):
        return part.replace("[!", "[^", 1)
    return re.escape(part.removeprefix("\\") if len(part) == 2 else part)
