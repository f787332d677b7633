"""Directories that tasks bring into their sandboxes, kept on the service's host by their digest.

A task names an archive by its content (`sha256:HEX`), never by a path: rows stay small, tasks
cannot read files of the host, and the graded content is pinned. Recipes make archives; this module
stores and finds them in the service's cache, and knows nothing of their content.
"""

import gzip
import hashlib
import os
import tempfile
from pathlib import Path

from prorl_service.errors import TaskError
from prorl_service.sandbox.cache import cache_root

REFERENCE = r"^sha256:[0-9a-f]{64}$"


def store_archive(tar: bytes) -> str:
    """Stores an uncompressed tar, as `Sandbox.restore` takes it. Returns its reference, which is
    the same for the same tar."""
    reference = f"sha256:{hashlib.sha256(tar).hexdigest()}"
    path = _path(reference)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(gzip.compress(tar, 6, mtime=0))
        os.rename(file.name, path)
    return reference


def has_archive(reference: str) -> bool:
    return _path(reference).exists()


def load_archive(reference: str) -> bytes:
    """Returns the tar. Raises `TaskError` if it is missing or damaged."""
    try:
        tar = gzip.decompress(_path(reference).read_bytes())
    except FileNotFoundError:
        raise TaskError(
            f"the archive {reference} is not in this service's cache",
            hint="build it with the recipe, with the same $PRORL_CACHE",
        ) from None
    except (OSError, EOFError) as error:
        raise TaskError(f"the archive {reference} cannot be read: {error}") from error
    if f"sha256:{hashlib.sha256(tar).hexdigest()}" != reference:
        raise TaskError(f"the archive {reference} is damaged", hint="remove it and build it again")
    return tar


def _path(reference: str) -> Path:
    return cache_root() / "archives" / f"{reference.removeprefix('sha256:')}.tar.gz"
