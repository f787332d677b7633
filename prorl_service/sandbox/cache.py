"""The directory of what the service can make again: runtimes, images, archives."""

import os
from pathlib import Path


def cache_root() -> Path:
    """Returns $PRORL_CACHE, or else a directory that the user of the sandboxes can read."""
    configured = os.environ.get("PRORL_CACHE")
    if configured:
        return Path(configured)
    return Path("/var/cache/prorl") if os.geteuid() == 0 else Path.home() / ".cache" / "prorl"
