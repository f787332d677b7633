"""Harnesses from npm: whether our presets start their newest releases as they start theirs.

Looks for the program at its path, and for each option and variable that the preset sets in the
program's files. Harnesses from PyPI are started by Python, which the comparison of imports covers.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.neighbours import packages

DIRECTORY = "prorl_service/gateway/harnesses"
STALE = timedelta(days=120)
"""Longest time without a release; a package that had more has probably moved."""
MODULES = "${tree}/node_modules/"
OURS = re.compile(r"NODE_|PRORL_|IS_SANDBOX|HOME|PATH|GATEWAY_KEY")
"""Variables that are not the program's own, or named by its configuration."""


@dataclass(frozen=True)
class Preset:
    name: str
    title: str
    package: str
    version: str
    path: str
    """Path of the program below node_modules."""
    named: frozenset[str]
    """Options and variables."""

    @property
    def hooks(self) -> int:
        return 1 + len(self.named)

    @cached_property
    def _described(self) -> dict[str, object]:
        return packages.about(self.package)

    def compared(self) -> tuple[str, list[str]]:
        """Returns the newest release, and what is broken with it."""
        about = packages.about(self.package)
        problems = [f"{self.package}: {about['deprecated']}"] if about.get("deprecated") else []
        if (age := datetime.now(UTC) - packages.published(about)) > STALE:
            problems.append(f"{self.package} has had no release for {age.days} days: has it moved?")
        with TemporaryDirectory() as directory:
            inside = self._unpacked(about, Path(directory))
            problems += self._problems(inside) if inside else [f"{self.path} is in no package"]
        return str(about["version"]), problems

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


def _is_read(file: Path) -> bool:
    is_program = file.suffix in ("", ".js", ".mjs", ".cjs")
    return file.is_file() and (is_program or bool(file.stat().st_mode & 1))


def presets(ours: Path) -> Iterator[Preset]:
    """Yields those of a checkout of ours that npm installs, variants apart."""
    for file in sorted((ours / DIRECTORY).glob("*.toml")):
        about = tomllib.loads(file.read_text(encoding="utf-8"))
        npm = about.get("install", {}).get("npm", {})
        paths = [one for one in about.get("command", []) if one.startswith(MODULES)]
        if not npm or not paths:
            continue
        options = {one.partition("=")[0] for one in about["command"] if one.startswith("--")}
        variables = {one for one in about.get("environment", {}) if not OURS.match(one)}
        yield Preset(
            file.stem,
            file.stem.replace("_", " "),
            next(iter(npm)),
            about["install"]["version"],
            paths[-1].removeprefix(MODULES),
            frozenset(options - {"--"} | variables),
        )
