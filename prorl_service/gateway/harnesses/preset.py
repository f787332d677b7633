"""Presets of harnesses, as data: what to install, how to start, what their settings switch off.

A preset is a TOML file, of this package or of a user's. It neither installs nor starts anything
itself.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from prorl_service.errors import InvalidRequest, problems_of
from prorl_service.schemas.suggestions import nearest

NAMES = frozenset(
    {"tree", "python", "url", "key", "model", "context", "max_tokens", "home", "prompt"}
)
"""Names that command, environment and files may use, as ${name}."""
VERSION = "{version}"
"""Place of the main package's version in `npm` and `pip`."""
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class ProgramStart:
    """A command line with its variables and files, filled in."""

    command: list[str]
    environment: dict[str, str]
    files: dict[str, str]


class Install(BaseModel):
    """Packages of a harness, pinned."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str = Field("", description="Version of the main package.")
    npm: dict[str, str] = Field({}, description="Version by package.")
    pip: list[str] = Field([], description="Requirements.")
    from_source: list[str] = Field(
        [], description="Packages of `pip` without wheels: their own scripts build them."
    )
    before: str = Field("", description="Date after which npm's packages are too new to install.")
    needless: list[str] = Field([], description="Paths in the tree that nothing of it runs.")
    size_mb: int = Field(0, description="Size of the tree, measured.")
    min_python: str | None = Field(None, description="Oldest version of Python that it runs on.")
    tree: str | None = Field(None, description="Preset whose tree a variant runs; set by `load`.")

    @model_validator(mode="after")
    def _has_a_version(self) -> Self:
        if (self.npm or self.pip) and not self.version:
            raise ValueError("give `version`, that of the main package")
        return self

    def at(self, version: str) -> Self:
        """Returns the packages with `version` of the main one, and its dependencies of today."""
        changed = {"version": version, "before": self.before if version == self.version else ""}
        return self.model_copy(update=changed)

    def npm_packages(self) -> dict[str, str]:
        return {name: is_.replace(VERSION, self.version) for name, is_ in self.npm.items()}

    def pip_requirements(self) -> list[str]:
        return [one.replace(VERSION, self.version) for one in self.pip]

    @property
    def has_versions(self) -> bool:
        """Whether other versions than the preset's can be installed."""
        return any(VERSION in text for text in (*self.npm.values(), *self.pip))


class Older(BaseModel):
    """What a version needs in place of the preset's, such as the package's former name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: list[str]
    npm: dict[str, str]
    before: str


class Preset(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str
    dialect: Literal["chat", "responses", "messages"] | None = Field(
        None, description="Dialect that it speaks; None: whichever the user's own program speaks."
    )
    install: Install = Install()
    command: list[str] = []
    environment: dict[str, str] = {}
    files: dict[str, str] = Field({}, description="Texts by path, written before the start.")
    must_not: list[str] = Field([], description="What its settings switch off.")
    spare_tokens: int = Field(
        0,
        ge=0,
        description="Tokens of its context that it leaves unused, as it only estimates lengths: "
        "added to ${context}, since the gateway counts them.",
    )
    versions: dict[str, Older] = Field({}, description="Older versions that start otherwise.")

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        for text in self._texts():
            template = Template(text)
            unknown = set(template.get_identifiers()) - NAMES
            if unknown or not template.is_valid():
                said = f"${{{min(unknown)}}}" if unknown else "a `$`"
                known = ", ".join(sorted(NAMES))
                raise ValueError(f"{said} in {text!r:.100}: known are {known}; write $$ for `$`")
        return self

    @property
    def needs_install(self) -> bool:
        return bool(self.install.npm or self.install.pip)

    def at(self, version: str) -> Self:
        """Returns the preset with `version` of the main package."""
        older = self.versions.get(version)
        if older is None:
            return self.model_copy(update={"install": self.install.at(version)})
        packages = {"version": version, "npm": older.npm, "before": older.before}
        install = self.install.model_copy(update=packages)
        return self.model_copy(update={"install": install, "command": older.command})

    def filled(self, values: Mapping[str, str]) -> ProgramStart:
        """Returns the start with `values` for all of `NAMES`."""

        def fill(text: str) -> str:
            return Template(text).substitute(values)

        return ProgramStart(
            [fill(part) for part in self.command],
            {name: fill(text) for name, text in self.environment.items()},
            {fill(path): fill(text) for path, text in self.files.items()},
        )

    def _texts(self) -> Iterator[str]:
        yield from self.command
        for older in self.versions.values():
            yield from older.command
        yield from self.environment.values()
        for path, text in self.files.items():
            yield path
            yield text


_added: dict[str, dict[str, Any]] = {}
"""Tables of the user's presets by name."""


def add(file: Path) -> str:
    """Adds the preset in a file, and returns its name, which is the file's. Raises
    `InvalidRequest`."""
    name = file.stem
    if not NAME.fullmatch(name):
        raise InvalidRequest(
            f"{file}: a preset has the name of its file, and {name!r:.100} is none",
            hint="use lower-case letters, digits, - and _",
        )
    if name in _shipped():
        raise InvalidRequest(f"{file}: there is a preset {name!r} already", hint="rename the file")
    try:
        table = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidRequest(f"{file}: {error}") from None
    parse(table, name)
    _added[name] = table
    return name


def names() -> list[str]:
    return sorted([*_shipped(), *_added])


def version_of(name: str) -> str:
    """Returns the version of a preset's packages. Raises `InvalidRequest`."""
    return load(name).install.version


def load(name: str, version: str | None = None) -> Preset:
    """Returns a preset, with another version of its packages if there is one. Raises
    `InvalidRequest` for an unknown name."""
    found = parse(_table(name), name) if name in _added else _load(name)
    return found if version in (None, found.install.version) else found.at(version)


@cache
def _load(name: str) -> Preset:
    return parse(_table(name), name)


@cache
def _shipped() -> frozenset[str]:
    found = (Path(one.name) for one in files(__package__).iterdir())
    return frozenset(one.stem for one in found if one.suffix == ".toml")


def parse(table: Mapping[str, Any], name: str) -> Preset:
    """Returns the preset of a TOML file's content. Raises `InvalidRequest`."""
    base = table.get("variant_of")
    try:
        return Preset.model_validate(table if base is None else _variant(_table(base), base, table))
    except ValidationError as error:
        raise InvalidRequest(f"harness {name}: {problems_of(error)}") from None


def _variant(base: Mapping[str, Any], name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a preset that runs the tree of `base`, with what `table` replaces and adds."""
    own = {key: value for key, value in table.items() if key != "variant_of"}
    return {
        **base,
        **own,
        "install": {**base.get("install", {}), "tree": name},
        "environment": {**base.get("environment", {}), **table.get("environment", {})},
        "files": {**base.get("files", {}), **table.get("files", {})},
    }


def _table(name: str) -> dict[str, Any]:
    """Raises `InvalidRequest` for an unknown name."""
    if name in _added:
        return _added[name]
    if name not in _shipped():
        hint = f"{nearest(name, names())} there are {', '.join(names())}".strip()
        raise InvalidRequest(f"there is no harness {name!r:.100}", hint=hint)
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text())
