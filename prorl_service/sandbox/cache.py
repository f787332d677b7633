"""Where the service keeps what it can make again: runtimes, images."""

import os
from pathlib import Path


def cache_root() -> Path:
    """$PRORL_CACHE, else a place that the user whom sandboxes run as can read."""
    configured = os.environ.get("PRORL_CACHE")
    if configured:
        return Path(configured)
    return Path("/var/cache/prorl") if os.geteuid() == 0 else Path.home() / ".cache" / "prorl"
