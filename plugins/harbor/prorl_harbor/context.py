"""The reference of the image that a Dockerfile and the directory around it make."""

import io
import tarfile
from pathlib import Path

from prorl_service.sandbox.archives import store_archive


def dockerfile_reference(directory: Path) -> str:
    """Stores the build context; the reference is the same for the same files. Blocking."""
    return f"dockerfile:{store_archive(_context(directory))}"


def _context(directory: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(directory.rglob("*")):
            tar.add(path, str(path.relative_to(directory)), recursive=False, filter=_normal)
    return buffer.getvalue()


def _normal(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (entry.isreg() or entry.isdir() or entry.issym()):
        return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
