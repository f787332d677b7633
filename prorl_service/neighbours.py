"""Neighbours of this project: the tested releases of trainers, engines and programs.

The table is `neighbours.toml`. It also has what is used of each, for those who check it:
`prorl_verl.contract` at its start, `scripts/neighbours` in newer releases. Imports none of them.
"""

import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field

from prorl_service.errors import ProRLError


class UntestedRelease(ProRLError):
    """The installed release of a package is outside the range that was tested."""


class Neighbour(BaseModel):
    """One package, as the table has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    package: str = Field("", description="Its name on PyPI; empty: not a package of Python.")
    tested: str = Field(description="Releases it works with, by PEP 440.")
    newest: str = Field(description="Newest release that was seen to work.")
    by: str = Field(description="How it is tested.")
    parts: dict[str, str] = Field({}, description="Narrower ranges, by what needs them.")
    program: list[str] = Field([], description="Command that prints its version.")
    options: dict[str, list[str]] = Field(
        {}, description="Command that takes the options in a constant of ours."
    )
    modules: list[str] = Field([], description="Packages of Python that our source imports.")
    stand_ins: dict[str, str] = Field({}, description="Class it imitates, by class of ours.")
    calls: dict[str, list[str]] = Field({}, description="Parameters given to what is not imported.")
    fields: dict[str, list[str]] = Field({}, description="Attributes used, by class.")
    reads: dict[str, dict[str, list[str]]] = Field(
        {}, description="Names that functions must read, by what needs it and function."
    )
    routes: dict[str, list[str]] = Field({}, description="Paths that we ask, by package.")
    ours: dict[str, list[str]] = Field(
        {}, description="What it needs in files and classes of ours."
    )

    def range(self, part: str = "") -> SpecifierSet:
        """Returns the tested releases; with a part, those that it works with."""
        return SpecifierSet(self.tested) & SpecifierSet(self.parts[part] if part else "")

    def installed(self) -> str | None:
        """Returns the release that is installed here; None if there is none."""
        if self.program:
            return _printed(self.program)
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None

    def supports(self, release: str, part: str = "") -> bool:
        """Returns whether the release is in the range. A build without a number is."""
        try:
            return self.range(part).contains(Version(release), prereleases=True)
        except InvalidVersion:
            return True

    def check(self, user: str, part: str = "") -> None:
        """Raises `UntestedRelease` if the release that is installed here is outside the range.

        `user` is what of ours needs it, for the message.
        """
        release, known = self.installed(), self.range(part)
        if release is not None and not self.supports(release, part):
            raise UntestedRelease(
                f"{user} supports {self.package}{known}, but {self.package} {release} is installed",
                hint=self.hint(part),
            )

    def hint(self, part: str = "") -> str:
        """Returns the command that installs a tested release; empty if pip cannot."""
        return f"pip install '{self.package}{self.range(part)}'" if self.package else ""


@cache
def neighbours() -> Mapping[str, Neighbour]:
    """Returns all, keyed by name."""
    return table((files("prorl_service") / "neighbours.toml").read_text(encoding="utf-8"))


def table(text: str) -> dict[str, Neighbour]:
    return {name: Neighbour(name=name, **about) for name, about in tomllib.loads(text).items()}


def _printed(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    words = done.stdout.split()
    return words[-1] if words else None
