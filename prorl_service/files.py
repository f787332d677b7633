"""Files that readers find whole or not at all."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Over what is there, in one step. Not synced: a crash of the machine may lose it. Raises
    `OSError`."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)
