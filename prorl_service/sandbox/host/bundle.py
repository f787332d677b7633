"""A Python with the execution server that runs in any image, even in one without Python or with
another C library.

It is the service's own Python, copied once into the cache with every shared library it loads, and
started through the dynamic loader that comes with them. The copy also has the execution server, the
packages of a Jupyter kernel, and an /etc for sandboxes without an image.
"""

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ptyprocess
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from prorl_service.errors import SandboxError
from prorl_service.sandbox import guest
from prorl_service.sandbox.cache import cache_root

INSIDE = "/.prorl"
"""Path of the copy inside every sandbox that isolates."""

PROGRAMS_INSIDE = f"{INSIDE}/programs"
"""Path of `cache.programs_directory` inside every sandbox that isolates."""

DOOR_INSIDE = f"{INSIDE}/mnt"
"""Path in a container of the directory of its `ContainerDoor`, if any. No sandbox sees it."""

_GUEST = Path(guest.__path__[0])
_SOURCES = (_GUEST / "execd", _GUEST / "jupyter", Path(ptyprocess.__path__[0]))
_PACKAGES = "packages"
_ETC = Path(__file__).parent / "etc"
_PYTHON_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LEFT_OUT = shutil.ignore_patterns(
    *("site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo"),
    *("ensurepip", "lib2to3", "config-*", "*.a"),
)
KERNEL_ROOTS = ("ipykernel", "jupyter-client")
NOT_NEEDED = {"debugpy", "jedi"}
"""Packages for attached debuggers and for completion; larger than all the rest."""
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))


def python(at: str = INSIDE) -> list[str]:
    """Returns the start of a command line that runs this Python."""
    loader = [f"{at}/libraries/loader", "--library-path", f"{at}/libraries"]
    return [*loader, f"{at}/python/bin/{_PYTHON_NAME}"]


def server(program: str, *arguments: str, at: str = INSIDE) -> list[str]:
    """Returns the command line of a program that may import the execution server."""
    boot = f"import sys; sys.path.append('{at}/lib'); {program}"
    # It ignores the environment and other packages, which is faster and safer.
    return [*python(at), "-I", "-S", "-c", boot, *arguments]


def kernel(at: str = INSIDE) -> dict[str, Any] | None:
    """Returns what `execd.ipython` needs to know; None if there is no kernel."""
    if not has_kernel():
        return None
    return {"python": python(at), "packages": f"{at}/{_PACKAGES}"}


def directory() -> Path:
    """Returns this service's copy, made if missing: two seconds of work, 150 MB.

    Raises `SandboxError`.
    """
    try:
        path = cache_root() / "runtime" / _key()
        if not path.is_dir():
            _make_at(path)
    except OSError as error:
        raise SandboxError(
            f"the runtime of the sandboxes cannot be made: {error}",
            hint="set $PRORL_CACHE to a directory that can be written",
            retryable=False,
        ) from error
    return path


def _make_at(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=path.parent))
    try:
        _make(making)
        with suppress(OSError):  # another process was faster
            making.rename(path)
    finally:
        shutil.rmtree(making, ignore_errors=True)


@cache  # it reads for tens of milliseconds, and every sandbox needs it
def _key() -> str:
    """Returns a digest of everything that goes into the copy."""
    state = hashlib.sha256(f"{sys.version} {sys.base_prefix}".encode())
    for source in sorted([*_GUEST.glob("*/*.py"), *_ETC.iterdir()]):
        state.update(source.read_bytes())
    for path in kernel_packages():
        state.update(path.name.encode())  # the version is in the name of its metadata
    return state.hexdigest()[:16]


def _make(path: Path) -> None:
    for name in ("mnt", "programs", "libraries", "bin", "python/bin", "python/lib"):
        (path / name).mkdir(parents=True)
    library = path / "python" / "lib" / _STANDARD_LIBRARY.name
    _copy(_STANDARD_LIBRARY, library)
    program = path / "python" / "bin" / _PYTHON_NAME
    shutil.copy(Path(sys.base_prefix) / "bin" / _PYTHON_NAME, program)
    for source in _SOURCES:
        _copy(source, path / "lib" / source.name)
    for source in kernel_packages():
        _copy(source, path / _PACKAGES / source.name)
    _copy(_ETC, path / _ETC.name)
    _copy_libraries([program, *path.glob("**/*.so")], path / "libraries")
    script = path / "bin" / "python3"
    script.write_text(f'#!/bin/sh\nat=${{0%/bin/*}}\nexec {" ".join(python("$at"))} "$@"\n')
    script.chmod(0o755)
    _make_readable(path)


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        shutil.copy2(source, target)  # byte code depends on the source's time
    else:
        shutil.copytree(source, target, ignore=_LEFT_OUT, symlinks=True)


def _copy_libraries(programs: Iterable[Path], target: Path) -> None:
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        name, _, found = line.strip().partition(" => ")
        source = (found or name).split(" (")[0]
        if source.startswith("/") and not source.endswith(":"):
            loader = Path(source).name.startswith("ld-")
            shutil.copy(source, target / ("loader" if loader else Path(source).name))


def _make_readable(path: Path) -> None:
    """Lets the user of the sandboxes read everything, whatever this process's umask."""
    for entry in [path, *path.rglob("*")]:
        if not entry.is_symlink():
            entry.chmod(entry.stat().st_mode | (0o555 if entry.is_dir() else 0o444))


# --- the service's own packages that a Jupyter kernel needs --------------------------------------


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
    waiting = list(KERNEL_ROOTS)
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
