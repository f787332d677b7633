"""Directories that tasks bring into their sandboxes, kept on the service's host by their digest.

A task names an archive by what is in it (`sha256:HEX`), never by a path: so rows stay small, no
task can read a file of the host, and what is graded is pinned. Recipes make archives; this module
stores and finds them, in the cache of the service, and knows nothing of what is in them.
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
    """Its reference: the same for the same tar, which is uncompressed, as `Sandbox.restore` takes
    it."""
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
    """The tar. Raises `TaskError` for one that is not here, or is not what it was."""
    try:
        tar = gzip.decompress(_path(reference).read_bytes())
    except FileNotFoundError:
        raise TaskError(
            f"the archive {reference} is not in this service's cache",
            hint="build it with the recipe, under the same $PRORL_CACHE",
        ) from None
    except (OSError, EOFError) as error:
        raise TaskError(f"the archive {reference} cannot be read: {error}") from error
    if f"sha256:{hashlib.sha256(tar).hexdigest()}" != reference:
        raise TaskError(f"the archive {reference} is damaged", hint="remove it, build it again")
    return tar


def _path(reference: str) -> Path:
    return cache_root() / "archives" / f"{reference.removeprefix('sha256:')}.tar.gz"
