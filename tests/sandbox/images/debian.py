"""A small Debian for tests, put together from this machine's packages without a network.

The directory takes 1.3 s and the SIF file 3 s more; debootstrap takes 30 s. Both stay in the
service's cache for later runs, keyed by the versions of their packages.
"""

import asyncio
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prorl_service.errors import TaskError
from prorl_service.sandbox.cache import cache_root
from prorl_service.sandbox.images import ImageCache
from prorl_service.sandbox.images.store import remove_tree

# fmt: off
PACKAGES = (
    "base-files", "base-passwd", "bash", "coreutils", "dash", "debianutils", "diffutils",
    "findutils", "git", "grep", "gzip", "hostname", "libc-bin", "login", "mawk", "ncurses-base",
    "ncurses-bin", "passwd", "patch", "perl-base", "procps", "python3", "sed", "tar",
    "util-linux",
)
# fmt: on
SMALL = ("base-files", "bash", "coreutils", "dash", "grep", "libc-bin", "sed", "tar")
"""Packages of an image that many tests build on."""
UNPACKAGED = ("bin", "sbin", "lib", "lib64", "etc/passwd", "etc/group", "etc/ld.so.cache")
"""Paths made when Debian was installed, not part of a package."""
DIRECTORIES = ("dev", "proc", "sys", "run", "root", "tmp", "var/tmp", "home")

_NOT_NEEDED = re.compile(
    r"/usr/share/(doc|man|locale|info|lintian|bug|gitweb|perl)/|/var/cache/|/etc/.*(shadow|sudoers)"
)
_VERSION = "2"
"""Version of the way the tree is made; change both together."""


@functools.cache
def debian_image(wanted: tuple[str, ...] = PACKAGES) -> Path:
    """Returns a SIF file; callers may be inside an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _image(wanted)).result()


@functools.cache
def debian_directory(wanted: tuple[str, ...] = PACKAGES) -> Path:
    """Returns the same system as a root directory."""
    packages = _closure(_installed(), wanted)
    directory = _root() / "directories" / _key(packages)
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".new-"))
        try:
            _copy(_files(packages), unfinished)
            unfinished.chmod(0o755)
            os.rename(unfinished, directory)
        except BaseException:
            remove_tree(unfinished)
            if not directory.exists():  # made by another run at the same time
                raise
    return directory


async def _image(wanted: tuple[str, ...]) -> Path:
    directory = debian_directory(wanted)
    cache = ImageCache(_root())
    name = f"debian-{directory.name}"
    try:
        async with cache.image(f"local:{name}") as image:
            return image
    except TaskError:
        return (await cache.build(name, str(directory))).path


def _root() -> Path:
    return cache_root() / "test-images"


def _installed() -> dict[str, tuple[str, str, str]]:
    """Returns version, dependencies and provided names of each installed package."""
    assert shutil.which("dpkg-query"), "these tests need a Debian or Ubuntu"
    form = "${Package}\t${Version}\t${Depends}, ${Pre-Depends}\t${Provides}\n"
    lines = _output("dpkg-query", "--show", f"--showformat={form}").splitlines()
    fields = [line.split("\t") for line in lines]
    return {name: (version, depends, provides) for name, version, depends, provides in fields}


def _closure(installed: dict[str, tuple[str, str, str]], wanted: tuple[str, ...]) -> dict[str, str]:
    """Returns `wanted` and all their dependencies, with versions."""
    providers = {
        _bare(virtual): name
        for name, (_, _, provides) in installed.items()
        for virtual in provides.split(",")
    }
    needed: dict[str, str] = {}
    pending = list(wanted)
    while pending:
        name = pending.pop()
        assert name in installed, f"these tests need the Debian package {name}"
        if name in needed:
            continue
        needed[name], depends, _ = installed[name]
        for alternatives in depends.split(","):
            names = [_bare(alternative) for alternative in alternatives.split("|")]
            found = [name if name in installed else providers.get(name) for name in names]
            pending += [name for name in found if name][:1]
    return needed


def _bare(dependency: str) -> str:
    """Returns the name without version and architecture."""
    return re.sub(r"[(:].*", "", dependency).strip()


def _key(packages: dict[str, str]) -> str:
    return hashlib.sha256(repr((_VERSION, sorted(packages.items()))).encode()).hexdigest()[:16]


def _files(packages: dict[str, str]) -> list[str]:
    """Returns paths without the leading slash, resolved since /bin is a link."""
    listed = _output("dpkg", "--listfiles", *packages).splitlines()
    files = {
        f"{os.path.realpath(os.path.dirname(path))}/{os.path.basename(path)}".lstrip("/")
        for path in listed
        if re.match(r"/[^.]", path) and os.path.lexists(path) and not _NOT_NEEDED.match(path)
    }
    alternatives = {f"etc/alternatives/{name}" for name in os.listdir("/etc/alternatives")}
    links = {
        f"{directory}/{name}"
        for directory in ("usr/bin", "usr/sbin")
        for name in os.listdir(f"/{directory}")
        if os.path.islink(f"/{directory}/{name}")
        and os.readlink(f"/{directory}/{name}").startswith("/etc/alternatives/")
    }
    extra = {path for path in UNPACKAGED if os.path.lexists(f"/{path}")}
    return sorted(files | alternatives | links | extra)


def _copy(files: list[str], into: Path) -> None:
    listing = "\0".join(files).encode()
    # The options come first: after the list, tar would take whole directories.
    reader = ["tar", "-C", "/", "--no-recursion", "--ignore-failed-read", "-c"]
    reader += ["--null", "--verbatim-files-from", "-T-"]
    packed = subprocess.run(reader, input=listing, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-C", str(into), "-xp"], input=packed, check=True)
    for name in DIRECTORIES:
        (into / name).mkdir(parents=True, exist_ok=True)
        (into / name).chmod(0o1777 if name.endswith("tmp") else 0o755)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
