"""Definitions of images that are made here: files of the user, or a Debian suite.

Apptainer runs debootstrap itself, as root or in a user namespace of an ordinary user.
"""

import re
import subprocess
from pathlib import Path

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.images.apptainer_build import ApptainerSource

_WORD = re.compile(r"[a-z0-9][a-z0-9.+-]*")
APT_TIMEOUT_S = 30.0


def _source(text: str, shown: str, directory: Path) -> ApptainerSource:
    def write(workspace: Path) -> str:
        path = workspace / "definition"
        path.write_text(text)
        return str(path)

    return ApptainerSource(shown, write, cwd=directory)


def of_file(path: Path) -> ApptainerSource:
    """Reads a definition."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {error}") from error
    if not re.search(r"^\s*Bootstrap\s*:", text, re.IGNORECASE | re.MULTILINE):
        raise TaskError(f"{path} is not a definition: it has no 'Bootstrap:'")
    return _source(text, str(path), path.absolute().parent)


def is_dockerfile(path: Path) -> bool:
    return path.name.startswith("Dockerfile") or path.suffix == ".Dockerfile"


def of_debian(
    suite: str, *, include: tuple[str, ...] = (), mirror: str | None = None
) -> ApptainerSource:
    """Defines a minimal Debian with the packages `include`, from `mirror` or apt's own source."""
    for word in (suite, *include):
        if not _WORD.fullmatch(word):
            raise TaskError(f"{word!r} is not the name of a suite or package")
    mirror = mirror or mirror_of(suite)
    if re.search(r"\s", mirror):
        raise TaskError(f"not the URL of a mirror: {mirror!r}")
    definition = f"""Bootstrap: debootstrap
OSVersion: {suite}
MirrorURL: {mirror}
Include: {" ".join(include) or "base-files"}

%setup
    rm -rf "$APPTAINER_ROOTFS"/var/cache/apt/* "$APPTAINER_ROOTFS"/var/lib/apt/lists/*
    : >"$APPTAINER_ROOTFS"/etc/apt/sources.list
"""
    return _source(definition, f"debian {' '.join((suite, *include))}", Path.cwd())


def mirror_of(suite: str) -> str:
    """Returns the URL from which apt of this machine gets `suite`."""
    command = ["apt-get", "indextargets", "--format", "$(CODENAME) $(RELEASE) $(REPO_URI)"]
    try:
        listed = subprocess.run(
            [*command, "Created-By: Packages"],
            capture_output=True,
            text=True,
            check=False,
            timeout=APT_TIMEOUT_S,
        ).stdout
    except FileNotFoundError:
        listed = ""
    for line in listed.splitlines():
        *names, uri = line.split()
        if suite in names:
            return uri
    raise SandboxError(
        f"apt of this machine has no source for {suite}",
        hint="name a mirror: --mirror URL",
        retryable=False,
    )
