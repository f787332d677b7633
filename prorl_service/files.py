"""Files that readers find whole or not at all."""

import os
from pathlib import Path


def write_whole(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Over what is there, in one step. Not synced: a crash of the machine may lose it. `mode` is
    cut by the umask. Raises `OSError`."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    unfinished.replace(path)
