"""`prorl harnesses`: lists, installs, checks and removes harnesses. `gateway.harnesses` works."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table

from prorl_service.cli.program import say
from prorl_service.cli.screen import Screen
from prorl_service.errors import InvalidRequest, ProRLError, TaskError
from prorl_service.gateway.harnesses import install as installer
from prorl_service.gateway.harnesses import preset, store
from prorl_service.gateway.harnesses.store import Installed

OWN = "of a preset of yours"
SHOWN = 20
"""Changed files that `verify` names."""

Name = Annotated[
    str,
    Parameter(help="A preset, as NAME, NAME@VERSION, or the TOML file of one of your own."),
]

harnesses = App(
    name="harnesses", help="List, install, verify and remove programs of agents, such as pi."
)


@harnesses.command(name="list")
def list_() -> None:
    """Show the presets, and which versions of them are installed; then those of your own files."""
    table = Table("name", "version", "dialect", "installed", "size", "about", box=None)
    trees = store.installed()
    for name in preset.names():
        table.add_row(*_row(name, trees))
    for one in trees:
        if one.name not in preset.names():
            table.add_row(one.name, one.version, "", "yes", f"{_size_mb(one) or 0} MB", OWN)
    Screen(sys.stdout).table(table)


@harnesses.command
def install(*names: str) -> int:
    """Install harnesses from npm and PyPI, by the clients npm and pip.

    Parameters
    ----------
    names
        Presets, each as NAME, NAME@VERSION, or the TOML file of one of your own.
    """
    if not names:
        raise InvalidRequest.of_field("names", f"name at least one of {', '.join(preset.names())}")
    wanted = [known(name) for name in names]
    failed = False
    with _ended_by_sigterm():
        for name in wanted:
            try:
                installer.install(name, say)
            except ProRLError as error:
                failed = True
                say(f"prorl: {error}" + (f" ({error.hint})" if error.hint else ""))
    return 2 if failed else 0


@harnesses.command
def verify(name: Name, /) -> int:
    """Compare an installed harness with what was installed, file by file."""
    one = _found(name)
    changed = installer.verify(one)
    if not changed:
        record = one.record()
        print(f"{one.path.name}: {record.files} files as installed, sha256 {record.digest}")
        return 0
    say(f"prorl: {one.path.name}: {len(changed)} files differ")
    for path in changed[:SHOWN]:
        say(f"  {path}")
    if len(changed) > SHOWN:
        say(f"  and {len(changed) - SHOWN} more")
    return 2


@harnesses.command
def remove(name: Name, /) -> None:
    """Remove an installed harness, and with it the presets that run the same packages."""
    one = _found(name)
    installer.remove(one)
    print(f"removed {one.path}")


def known(harness: str) -> str:
    """Returns NAME or NAME@VERSION, and adds the preset of a TOML file. Raises `InvalidRequest`."""
    if harness.endswith(".toml"):
        return preset.add(Path(harness))
    store.parse(harness)
    return harness


def _found(name: str) -> Installed:
    return store.find(*store.parse(known(name)), any_python=True)


def _row(name: str, trees: list[Installed]) -> tuple[str, ...]:
    packages = preset.load(name).install
    own = {one.version: one for one in trees if one.name == (packages.tree or name)}
    here = own.get(packages.version)
    measured = None if here is None else _size_mb(here)
    size = packages.size_mb if measured is None else measured
    versions = ["yes" if version == packages.version else version for version in own]
    dialect = preset.load(name).dialect or "any"
    installed = ", ".join(versions) or "no"
    return name, packages.version, dialect, installed, f"{size} MB", preset.load(name).about


def _size_mb(one: Installed) -> int | None:
    """Returns the size of a tree; None if its record cannot be read."""
    try:
        return one.record().size_mb
    except TaskError:
        return None


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM unwind as Ctrl-C does, so that unfinished trees are removed."""

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
