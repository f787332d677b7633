"""Installs harnesses from npm and PyPI, by these registries' own clients, pinned and with digests.

A tree is whole or absent: it is made next to its place and renamed. No script of a package is run,
except those that build the few packages without wheels which a preset names.
"""

import importlib.util
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prorl_service.errors import InvalidRequest, ProRLError
from prorl_service.gateway.harnesses import preset, store, trees
from prorl_service.gateway.harnesses.preset import Install
from prorl_service.gateway.harnesses.store import Installed, Package, Record
from prorl_service.sandbox.cache import programs_directory

SAID_LINES = 5
"""Lines of a failed client's output in the error."""

Say = Callable[[str], None]


def install(wanted: str, say: Say) -> Installed:
    """Installs a preset's packages, NAME or NAME@VERSION. Leaves an installed tree as it is.

    Raises `ProRLError`, for instance if a client is missing or fails.
    """
    name, version = store.parse(wanted)
    packages = preset.load(name).install
    if packages.tree is not None:
        say(f"{name} runs the tree of {packages.tree}")
        name = packages.tree
    if not packages.npm and not packages.pip:
        raise InvalidRequest(f"{name} has nothing to install")
    if version not in (None, packages.version) and not packages.has_versions:
        raise InvalidRequest(f"{name} has the version {packages.version} only")
    return install_packages(name, preset.load(name, version).install, say)


def install_packages(name: str, packages: Install, say: Say) -> Installed:
    """Like `install`, but with any packages: they become the tree NAME@VERSION."""
    at = programs_directory() / f"{name}@{packages.version}"
    trees.sweep(at.parent)
    if store.is_installed(at):
        say(f"{at.name} is already installed")
    else:
        _check(name, packages)
        _make(name, packages, at, say)
    return store.find_tree(name, packages.version)


def verify(one: Installed) -> list[str]:
    """Returns the files that changed since the installation, are missing, or are new."""
    recorded = trees.read(one.path)
    if trees.digest_of(recorded) != one.record().digest:
        return [trees.MANIFEST]
    actual = trees.digests(one.path)
    both = recorded.keys() | actual.keys()
    return sorted(path for path in both if recorded.get(path) != actual.get(path))


def remove(one: Installed) -> None:
    """Removes a tree. Rollouts that are running it fail."""
    with trees.making(one.path.parent) as gone:
        one.path.rename(gone / one.path.name)


def _make(name: str, packages: Install, at: Path, say: Say) -> None:
    began = time.monotonic()
    with trees.making(at.parent) as tree:
        found = _packages(tree, at.name, packages, say)
        for path in packages.needless:
            shutil.rmtree(tree / path, ignore_errors=True)
        trees.make_readable(tree)
        files = trees.digests(tree)
        trees.write(tree, files)
        record = Record(
            name=name,
            version=packages.version,
            python=store.PYTHON if packages.pip else None,
            packages=found,
            digest=trees.digest_of(files),
            files=len(files),
            size_mb=trees.size_mb(tree),
        )
        store.write(tree, record)
        trees.put(tree, at)
    took = time.monotonic() - began
    say(f"{at.name}: {len(found)} packages, {record.size_mb} MB, {took:.0f} s")


def _packages(tree: Path, title: str, packages: Install, say: Say) -> dict[str, Package]:
    found: dict[str, Package] = {}
    if packages.npm:
        say(f"{title}: npm installs {', '.join(packages.npm)} (up to a minute)")
        found |= _npm(tree, packages)
    if packages.pip:
        say(f"{title}: pip installs {', '.join(packages.pip_requirements())} (up to a minute)")
        found |= _pip(tree, packages)
    return found


def _check(name: str, packages: Install) -> None:
    """Raises `ProRLError` for what this machine lacks."""
    if packages.npm and shutil.which("npm") is None:
        raise ProRLError(
            f"{name} comes from npm, which is not installed",
            hint="install Node.js with npm (`apt-get install npm`); sandboxes need neither",
        )
    if packages.npm and platform.machine() != "x86_64":
        raise ProRLError(f"{name} runs on x86_64, and this machine is {platform.machine()}")
    if packages.pip and importlib.util.find_spec("pip") is None:
        raise ProRLError(
            f"{name} comes from PyPI, and {sys.executable} has no pip",
            hint=f"run `{sys.executable} -m ensurepip`",
        )
    if packages.min_python is not None:
        needed = tuple(int(part) for part in packages.min_python.split("."))
        if sys.version_info < needed:
            raise ProRLError(
                f"{name} needs Python {packages.min_python}, and the service runs on"
                f" {store.PYTHON}",
                hint=f"install the service with Python {packages.min_python} or newer",
            )


def _npm(tree: Path, packages: Install) -> dict[str, Package]:
    (tree / "package.json").write_text('{"name": "harness", "private": true}')  # else its path's
    quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--save-exact"]
    before = [f"--before={packages.before}"] if packages.before else []
    wanted = [f"{name}@{version}" for name, version in packages.npm_packages().items()]
    _run("npm", ["npm", "install", "--prefix", str(tree), *quiet, *before, *wanted])
    lock: dict[str, dict[str, Any]] = json.loads((tree / "package-lock.json").read_text())[
        "packages"
    ]
    return {
        path.removeprefix("node_modules/"): Package(
            version=one.get("version", ""), digest=one.get("integrity", "")
        )
        for path, one in lock.items()
        if path and (tree / path).is_dir()
    }


def _pip(tree: Path, packages: Install) -> dict[str, Package]:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--only-binary", ":all:"]
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.json")
        quiet += [f"--no-binary={name}" for name in packages.from_source]
        where = ["--target", str(tree / "site"), "--report", str(report)]
        pip = [sys.executable, "-m", "pip", "install"]
        _run("pip", [*pip, *quiet, *where, *packages.pip_requirements()])
        found = json.loads(report.read_text())["install"]
    # Its scripts name this machine's Python, which sandboxes do not have.
    shutil.rmtree(tree / "site/bin", ignore_errors=True)
    return {
        one["metadata"]["name"]: Package(
            version=one["metadata"]["version"], digest=_pip_digest(one["download_info"])
        )
        for one in found
    }


def _pip_digest(download: dict[str, Any]) -> str:
    sha256 = download.get("archive_info", {}).get("hashes", {}).get("sha256")
    return f"sha256-{sha256}" if sha256 else ""


def _run(client: str, command: list[str]) -> None:
    """Raises `ProRLError` with the end of what the client said."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith(("error", "npm error"))]
        said = " | ".join((errors or lines)[-SAID_LINES:])
        raise ProRLError(f"{client} failed: {said or f'exit code {done.returncode}'}")
