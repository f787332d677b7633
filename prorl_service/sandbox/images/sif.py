"""What a SIF file has besides its file system: where that begins, and the OCI configuration.

Apptainer keeps the configuration of an image that it makes of a registry or an archive. Reads a few
kilobytes. Blocking: call it in a thread.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

MAGIC = b"SIF_MAGIC"
MAGIC_AT = 32
CONFIG = "oci-config.json"

_HEADER = struct.Struct("<8q")
_HEADER_AT = 64
"""Offset of the times and counts, which follow the launcher, the magic, the version and the id."""
_DESCRIPTOR = struct.Struct("<i?3I7q128s384s")
_PARTITION = 0x4004


@dataclass(frozen=True, slots=True)
class Part:
    kind: int
    name: str
    offset: int
    size: int


def is_sif(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(MAGIC_AT)
        return file.read(len(MAGIC)) == MAGIC


def parts(path: Path) -> Iterator[Part]:
    with path.open("rb") as file:
        file.seek(_HEADER_AT)
        *_, total, at, _, _, _ = _HEADER.unpack(file.read(_HEADER.size))
        file.seek(at)
        table = file.read(_DESCRIPTOR.size * total)
    for kind, used, *_, offset, size, _, _, _, _, _, name, _ in _DESCRIPTOR.iter_unpack(table):
        if used:
            yield Part(kind, name.rstrip(b"\0").decode(errors="replace"), offset, size)


def file_system_offset(path: Path) -> int:
    """Returns where the squashfs begins."""
    return next(part.offset for part in parts(path) if part.kind == _PARTITION)


def oci_config(path: Path) -> dict[str, Any]:
    """Returns the OCI configuration: Env, WorkingDir, User and more. Empty if there is none."""
    for part in parts(path):
        if part.name == CONFIG:
            with path.open("rb") as file:
                file.seek(part.offset)
                config = orjson.loads(file.read(part.size))
            return config if isinstance(config, dict) else {}
    return {}
