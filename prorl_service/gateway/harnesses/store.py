"""Harnesses installed on this machine: one directory each, named NAME@VERSION."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from prorl_service.errors import InvalidRequest, TaskError
from prorl_service.gateway.harnesses import preset, trees
from prorl_service.sandbox.cache import programs_directory

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Version of the Python that runs the service, and programs in sandboxes."""

_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]*")


class Package(BaseModel):
    version: str
    digest: str
    """The registry's digest, as in npm's lock file; empty for what comes from elsewhere."""


class Record(BaseModel):
    """`harness.json` of a tree."""

    name: str
    version: str
    python: str | None = None
    """Version of Python that the packages from PyPI are for."""
    packages: dict[str, Package]
    digest: str
    """SHA-256 of the list of all files with theirs, `harness.sha256`."""
    files: int
    size_mb: int


@dataclass(frozen=True, slots=True)
class Installed:
    name: str
    version: str
    path: Path

    def record(self) -> Record:
        """Raises `TaskError`."""
        try:
            return Record.model_validate_json((self.path / trees.RECORD).read_bytes())
        except (OSError, ValidationError):
            raise TaskError(
                f"{self.path / trees.RECORD} cannot be read",
                hint=f"run `prorl harnesses remove {self.path.name}`, and install it again",
            ) from None


def parse(wanted: str) -> tuple[str, str | None]:
    """Returns the name and the version of NAME or NAME@VERSION. Raises `InvalidRequest`."""
    name, has_version, version = wanted.partition("@")
    preset.load(name)
    if not has_version:
        return name, None
    return name, _checked(version)


def installed() -> list[Installed]:
    return list(_installed())


def find(name: str, version: str | None = None, *, any_python: bool = False) -> Installed:
    """Returns the tree of a preset.

    Raises `TaskError` if it is not installed or for another version of Python than this one, and
    `InvalidRequest` for an unknown name.
    """
    wanted = preset.load(name, version).install
    found = find_tree(wanted.tree or name, _checked(wanted.version), of=name)
    python = PYTHON if any_python else found.record().python
    if python not in (None, PYTHON):
        raise TaskError(
            f"{found.path.name} is for Python {python}, and the service runs on {PYTHON}",
            hint=f"run `prorl harnesses remove {found.path.name}`, and install it again",
        )
    return found


def find_tree(name: str, version: str, *, of: str = "") -> Installed:
    """Returns the tree NAME@VERSION, which the preset `of` runs. Raises `TaskError`."""
    at = programs_directory() / f"{name}@{version}"
    if not is_installed(at):
        raise TaskError(
            f"the harness {of or name} {version} is not installed",
            hint=f"run `prorl harnesses install {_shortest(name, version)}`",
        )
    return Installed(name, version, at)


def is_installed(at: Path) -> bool:
    return (at / trees.RECORD).is_file()


def write(tree: Path, record: Record) -> None:
    path = tree / trees.RECORD
    path.write_text(record.model_dump_json(indent=1))
    path.chmod(0o644)


def _installed() -> Iterator[Installed]:
    for path in sorted(programs_directory().iterdir()):
        name, _, version = path.name.partition("@")
        if version and is_installed(path):
            yield Installed(name, version, path)


def _checked(version: str) -> str:
    """Raises `InvalidRequest` for what is no exact version, such as a range or a path."""
    if not _VERSION.fullmatch(version):
        raise InvalidRequest(
            f"{version!r:.100} is no version", hint="give an exact one, such as 1.2.3"
        )
    return version


def _shortest(name: str, version: str) -> str:
    is_usual = name in preset.names() and preset.version_of(name) == version
    return name if is_usual else f"{name}@{version}"
