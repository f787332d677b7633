"""A package of a third party, installed for one test: a module and its metadata on `sys.path`."""

from pathlib import Path

import pytest


def install(
    patch: pytest.MonkeyPatch, directory: Path, *, module: str, source: str, offers: str
) -> None:
    """`offers`: the text of `entry_points.txt`."""
    (directory / f"{module}.py").write_text(source)
    metadata = directory / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(offers)
    patch.syspath_prepend(directory)
