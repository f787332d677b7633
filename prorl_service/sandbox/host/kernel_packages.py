"""Files of the service's own installation that a Jupyter kernel in a sandbox needs."""

from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOTS = ("ipykernel", "jupyter-client")
NOT_NEEDED = {"debugpy", "jedi"}
"""Packages for attached debuggers and for completion; larger than all the rest."""


@cache  # asked for at each start of a sandbox
def has_kernel() -> bool:
    return find_spec("ipykernel") is not None


def kernel_packages() -> list[Path]:
    """Returns top-level packages, modules and native-library directories of all requirements.

    Copied or linked into one directory under their own names, they make a `sys.path` entry for the
    Python that runs the service. Empty without the extra `kernels`. Raises `PackageNotFoundError`
    when a required one is missing.
    """
    if not has_kernel():
        return []
    paths = {path for found in _closure() for path in _top_level(found)}
    return sorted(path for path in paths if path.exists())


def _closure() -> list[Distribution]:
    found: dict[str, Distribution] = {}
    waiting = list(ROOTS)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found and name not in NOT_NEEDED:
            found[name] = distribution(name)
            waiting += _requirements(found[name])
    return list(found.values())


def _requirements(found: Distribution) -> Iterator[str]:
    for text in found.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def _top_level(found: Distribution) -> Iterator[Path]:
    """Yields also metadata, which some packages read at import; not scripts, which lie outside."""
    for file in found.files or ():
        if ".." not in file.parts and file.parts[0] != "__pycache__":
            yield Path(str(found.locate_file(file.parts[0])))
