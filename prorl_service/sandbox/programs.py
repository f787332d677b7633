"""The directory of programs that every sandbox sees read-only, such as installed harnesses."""

import os
from pathlib import Path

from prorl_service.sandbox.cache import cache_root


def directory() -> Path:
    """Returns $PRORL_HARNESSES, or else a directory of the cache, made if missing.

    Running sandboxes see what is added to it.
    """
    configured = os.environ.get("PRORL_HARNESSES")
    path = Path(configured) if configured else cache_root() / "harnesses"
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    return path
