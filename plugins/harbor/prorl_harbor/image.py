"""What an image says about itself: its working directory and user.

Apptainer keeps the configuration of an image of Docker's kind in the SIF file, beside the files
themselves. Variables are not read here: the container gets them from Apptainer.
"""

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC_AT, _MAGIC = 32, b"SIF_MAGIC"
_TABLE_AT = 96
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
"""Type, use, three numbers, then offset and size of the content, ..., and its name."""
_NAME = b"oci-config.json"


@dataclass(frozen=True, slots=True)
class ImageConfig:
    workdir: str | None = None
    user: str | None = None

    def over(self, base: "ImageConfig") -> "ImageConfig":
        """Returns what a Dockerfile sets, and the rest as its base has it."""
        return ImageConfig(self.workdir or base.workdir, self.user or base.user)


def config_of(image: Path) -> ImageConfig:
    """Reads a SIF file; an image without a configuration, such as a directory, has nothing set."""
    if image.is_dir():
        return ImageConfig()
    with image.open("rb") as file:
        head = file.read(128)
        if head[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] != _MAGIC:
            return ImageConfig()
        offset, length = struct.unpack_from("<qq", head, _TABLE_AT)
        file.seek(offset)
        for at, size in _places(file.read(length)):
            file.seek(at)
            return _parsed(file.read(size))
    return ImageConfig()


def _places(table: bytes) -> Iterator[tuple[int, int]]:
    for start in range(0, len(table) - _DESCRIPTOR.size + 1, _DESCRIPTOR.size):
        fields = _DESCRIPTOR.unpack_from(table, start)
        if fields[1] and fields[12].rstrip(b"\0") == _NAME:
            yield fields[5], fields[6]


def _parsed(text: bytes) -> ImageConfig:
    try:
        found = json.loads(text)
    except ValueError:
        return ImageConfig()
    if not isinstance(found, dict):
        return ImageConfig()
    return ImageConfig(str(found.get("WorkingDir") or "") or None, str(found.get("User") or "") or None)


def config_of_dockerfile(text: str) -> ImageConfig:
    """Returns what the last stage sets by itself. A path with a variable is left to the build."""
    workdir = user = None
    for name, value in _instructions(text):
        if name == "FROM":
            workdir = user = None
        elif "$" in value:
            continue
        elif name == "WORKDIR":
            workdir = value if value.startswith("/") else f"{(workdir or '').rstrip('/')}/{value}"
        elif name == "USER":
            user = value
    return ImageConfig(workdir, user)


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yields names and arguments. Bodies of here-documents may be taken for instructions only if
    they look like one."""
    joined = re.sub(r"\\[ \t]*\n(?:[ \t]*#.*\n)*", " ", text)
    for line in joined.splitlines():
        match = re.match(r"\s*(FROM|WORKDIR|USER)\s+(.+?)\s*$", line, re.IGNORECASE)
        if match:
            yield match[1].upper(), match[2].strip("\"'")
