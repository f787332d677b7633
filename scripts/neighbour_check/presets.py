"""Harnesses: whether our presets start their newest releases as they start theirs.

Of npm's, looks for the program at its path, and for each option and variable that the preset sets
in the program's files. Of PyPI's, for what the preset's own Python imports and calls.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scripts.neighbour_check import packages
from scripts.neighbour_check.compare import used
from scripts.neighbour_check.sources import Sources
from scripts.neighbour_check.uses import in_text

DIRECTORY = "prorl_service/gateway/harnesses"
STALE = timedelta(days=120)
"""Longest time without a release; a package that had more has probably moved."""
MODULES = "${tree}/node_modules/"
OURS = re.compile(r"NODE_|PRORL_|IS_SANDBOX|HOME|PATH|GATEWAY_KEY")
"""Variables that are not the program's own, or named by its configuration."""


@dataclass(frozen=True)
class OfNpm:
    name: str
    title: str
    package: str
    version: str
    path: str
    """Path of the program below node_modules."""
    named: frozenset[str]
    """Options and variables."""

    def compared(self) -> tuple[str, int, list[str]]:
        """Returns the newest release, the number of hooks into it, and what is broken."""
        about = packages.about(self.package)
        problems = [f"{self.package}: {about['deprecated']}"] if about.get("deprecated") else []
        if (age := datetime.now(UTC) - packages.published(about)) > STALE:
            problems.append(f"{self.package} has had no release for {age.days} days: has it moved?")
        with TemporaryDirectory() as directory:
            inside = self._unpacked(about, Path(directory))
            problems += self._problems(inside) if inside else [f"{self.path} is in no package"]
        return str(about["version"]), 1 + len(self.named), problems

    def _unpacked(self, about: dict[str, object], directory: Path) -> Path | None:
        """Returns the directory of the package that has the program."""
        owner = "/".join(self.path.split("/")[: 2 if self.path.startswith("@") else 1])
        if owner == self.package:
            return packages.unpack(f"{owner}@{about['version']}", directory / "main")
        others = about.get("optionalDependencies") or {}
        assert isinstance(others, dict)
        if owner not in others:
            return None
        wanted = str(others[owner])
        source = wanted.removeprefix("npm:") if ":" in wanted else f"{owner}@{wanted}"
        return packages.unpack(source, directory / "other")

    def _problems(self, inside: Path) -> list[str]:
        owner = 2 if self.path.startswith("@") else 1
        program = inside.joinpath(*self.path.split("/")[owner:])
        if not program.is_file():
            return [f"{self.path} is not there"]
        content = b"".join(one.read_bytes() for one in inside.rglob("*") if _is_read(one))
        return [
            f"{self.package} knows no {one}"
            for one in sorted(self.named)
            if one.lstrip("-").encode() not in content
        ]


@dataclass(frozen=True)
class OfPyPI:
    name: str
    title: str
    packages: list[str]
    """Packages of the preset's version, the main one first."""
    version: str
    texts: list[str]
    """Python of the preset."""

    def compared(self) -> tuple[str, int, list[str]]:
        """Returns the newest release, the number of hooks into it, and what is broken."""
        with TemporaryDirectory() as name:
            directory = Path(name)
            release, *_ = [packages.wheel(one, "", directory) for one in self.packages]
            theirs = {one.name for one in directory.iterdir()}
            found = [use for text in self.texts for use in in_text(text, theirs, self.name)]
            problems = [one for use in found for one in used(use, Sources(directory))]
            return release, len(found), problems


def _is_read(file: Path) -> bool:
    is_program = file.suffix in ("", ".js", ".mjs", ".cjs")
    return file.is_file() and (is_program or bool(file.stat().st_mode & 1))


def presets(ours: Path) -> Iterator[OfNpm | OfPyPI]:
    """Yields those of a checkout of ours that have packages of their own."""
    for file in sorted((ours / DIRECTORY).glob("*.toml")):
        about = tomllib.loads(file.read_text(encoding="utf-8"))
        install, title = about.get("install", {}), file.stem.replace("_", " ")
        version = install.get("version", "")
        paths = [one for one in about.get("command", []) if one.startswith(MODULES)]
        of_version = [one for one in install.get("pip", []) if "{version}" in one]
        if install.get("npm"):
            path = paths[-1].removeprefix(MODULES)
            named = frozenset(_named(about))
            yield OfNpm(file.stem, title, next(iter(install["npm"])), version, path, named)
        elif of_version:
            names = [one.partition("==")[0] for one in of_version]
            yield OfPyPI(file.stem, title, names, version, list(_python(about)))


def _named(about: dict[str, Any]) -> Iterator[str]:
    """Yields options and variables."""
    for one in about["command"]:
        if one.startswith("--") and one != "--":
            yield one.partition("=")[0]
    yield from (one for one in about.get("environment", {}) if not OURS.match(one))


def _python(about: dict[str, Any]) -> Iterator[str]:
    """Yields the preset's own Python, with 0 in place of its names in braces."""
    command = about["command"]
    texts = [text for flag, text in pairwise(command) if flag == "-c"]
    texts += [text for path, text in about.get("files", {}).items() if path.endswith(".py")]
    yield from (re.sub(r"\$\{\w+\}", "0", text) for text in texts)
