"""Directories of what the service can make again: runtimes, images, archives, harnesses."""

import os
from pathlib import Path


def cache_root() -> Path:
    """Returns $PRORL_CACHE, or else a directory that the user of the sandboxes can read."""
    configured = os.environ.get("PRORL_CACHE")
    if configured:
        return Path(configured)
    return Path("/var/cache/prorl") if os.geteuid() == 0 else Path.home() / ".cache" / "prorl"


def programs_directory() -> Path:
    """Returns the directory of programs that every sandbox sees read-only, such as harnesses.

    It is $PRORL_HARNESSES, or else a directory of the cache, made if missing. Running sandboxes see
    what is added to it.
    """
    configured = os.environ.get("PRORL_HARNESSES")
    path = Path(configured) if configured else cache_root() / "harnesses"
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    return path
