"""Headers of safetensors files with weights: shapes, and whether they are an adapter's."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson

from prorl_service.errors import BackendRejected
from prorl_service.schemas import ADAPTER_CONFIG

MAX_HEADER_BYTES = 100 * 10**6
"""Largest header that the format allows."""


@dataclass(frozen=True, slots=True)
class Header:
    shapes: dict[str, list[int]]
    """Shape of each tensor, keyed by name."""
    adapter_config: str | None
    """JSON text of PEFT's adapter_config.json; None for weights of a whole model."""

    @property
    def kind(self) -> str:
        """Digest of everything but the values."""
        text = orjson.dumps([self.shapes, self.adapter_config], option=orjson.OPT_SORT_KEYS)
        return sha256(text).hexdigest()[:16]


def read(path: Path) -> Header:
    """Reads the header. Raises `BackendRejected` if the safetensors file is not complete: vLLM
    would notice only after it has lost its old weights."""
    try:
        entries, size = _entries(path)
        metadata = entries.pop("__metadata__", {})
        end = max(entry["data_offsets"][1] for entry in entries.values())
        if path.stat().st_size == size + end:
            shapes = {name: entry["shape"] for name, entry in entries.items()}
            return Header(shapes, metadata.get(ADAPTER_CONFIG))
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        pass
    raise BackendRejected(
        f"{path.name} is not a complete safetensors file", hint="push the weights again"
    )


def is_adapter(path: Path) -> bool:
    """Returns False for an invalid file, too: engines refuse that with their own reason."""
    try:
        return read(path).adapter_config is not None
    except BackendRejected:
        return False


def unreadable(path: Path, error: OSError) -> BackendRejected:
    return BackendRejected(
        f"the weights in {path} cannot be read: {error.strerror}", hint="push weights again"
    )


def _entries(path: Path) -> tuple[dict[str, Any], int]:
    """Returns all entries of the header, and its size in bytes."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return orjson.loads(file.read(min(size, MAX_HEADER_BYTES))), 8 + size
