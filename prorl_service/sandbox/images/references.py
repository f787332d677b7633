"""Names of images, parsed and refused before any work starts. Reads no file and asks no registry.

docker://NAME[:TAG|@DIGEST]   a registry; also without docker://
oci:DIRECTORY[:TAG]           an OCI layout
oci-archive:FILE              an OCI layout as a tar file, with one image
docker-archive:FILE           what `docker save` writes, with one image
/PATH, ./PATH, ../PATH, ~/PATH   a SIF file or the directory of a root file system, used as is
local:NAME                    what `prorl images build NAME` made
dockerfile:sha256:HEX         a stored build context, built at first use
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from prorl_service.errors import TaskError

DEFAULT_REGISTRY = "docker.io"
DEFAULT_TAG = "latest"

FORMS = "see `prorl images pull --help` for the forms of references"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d{1,5})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class RegistryReference:
    registry: str
    repository: str
    tag: str | None
    digest: str | None
    """Digest that it is pinned to, without a tag."""

    def __str__(self) -> str:
        return f"docker://{self.name}" + (f"@{self.digest}" if self.digest else f":{self.tag}")

    @property
    def name(self) -> str:
        return f"{self.registry}/{self.repository}"

    @property
    def is_loopback(self) -> bool:
        """True for the only registries that are contacted without TLS."""
        return is_loopback(self.registry)


@dataclass(frozen=True, slots=True)
class FileReference:
    form: str
    """Form of the file: oci-archive or docker-archive; oci for the directory of a layout."""
    path: Path
    tag: str | None = None

    def __str__(self) -> str:
        return f"{self.form}:{self.path}" + (f":{self.tag}" if self.tag else "")


@dataclass(frozen=True, slots=True)
class PathReference:
    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class LocalReference:
    name: str

    def __str__(self) -> str:
        return f"local:{self.name}"


@dataclass(frozen=True, slots=True)
class DockerfileReference:
    archive: str
    """Reference of the archive of the build context."""

    def __str__(self) -> str:
        return f"dockerfile:{self.archive}"


Reference = RegistryReference | FileReference | PathReference | LocalReference | DockerfileReference


def parse(text: str) -> Reference:
    """Parses a reference; relative paths become absolute. Raises `TaskError` if it is invalid."""
    if not text or text != text.strip() or "\0" in text:
        raise _refused(text, "it is empty or has spaces around it")
    scheme, colon, rest = text.partition(":")
    if text.startswith(("/", "./", "../", "~/")):
        return PathReference(_absolute(text))
    if not colon and text.endswith((".sif", ".img", ".tar")):
        raise _refused(text, f"a file needs a path: ./{text}")
    if not colon:
        return _registry(text, text)
    match scheme:
        case "docker":
            if not rest.startswith("//"):
                raise _refused(text, "docker: must be followed by //")
            return _registry(rest[2:], text)
        case "oci":
            path, _, tag = rest.partition(":")
            checked = _checked_tag(tag, text) if tag else None
            return FileReference(scheme, _path(path, text), checked)
        case "oci-archive" | "docker-archive":
            return FileReference(scheme, _path(rest, text))
        case "local":
            return LocalReference(_checked_tag(rest, text))
        case "dockerfile":
            if not _DIGEST.fullmatch(rest):
                raise _refused(text, "it must be dockerfile:sha256: and 64 hexadecimal digits")
            return DockerfileReference(rest)
    if rest.startswith("//"):
        raise _refused(text, f"{scheme}:// is not supported")
    return _registry(text, text)


def is_loopback(host: str) -> bool:
    """Returns whether `host[:port]` is this machine."""
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    name = name.strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _registry(name: str, text: str) -> RegistryReference:
    name, at, digest = name.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _refused(text, "a digest is sha256: and 64 hexadecimal digits")
    name, tag = _split_tag(name)
    registry, slash, repository = name.partition("/")
    if not slash or not ("." in registry or ":" in registry or registry == "localhost"):
        registry, repository = DEFAULT_REGISTRY, name
    if registry == DEFAULT_REGISTRY and "/" not in repository:
        repository = f"library/{repository}"
    if not _HOST.fullmatch(registry):
        raise _refused(text, f"{registry!r} is not a host")
    if not _REPOSITORY.fullmatch(repository):
        raise _refused(text, f"{repository!r} is not a repository (they are lower case)")
    if tag is not None:
        _checked_tag(tag, text)
    if at:
        return RegistryReference(registry, repository, None, digest)
    return RegistryReference(registry, repository, tag or DEFAULT_TAG, None)


def _split_tag(name: str) -> tuple[str, str | None]:
    """Splits off the tag: a colon after the last slash begins one; before it, a port."""
    head, colon, tail = name.rpartition(":")
    return (head, tail) if colon and "/" not in tail else (name, None)


def _checked_tag(tag: str, text: str) -> str:
    if not _TAG.fullmatch(tag):
        raise _refused(text, f"{tag!r} is not a tag or name: use letters, digits, '_', '.', '-'")
    return tag


def _path(path: str, text: str) -> Path:
    if not path or ":" in path or "\n" in path:
        raise _refused(text, "it needs a path without colons or line breaks")
    return _absolute(path)


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()


def _refused(text: str, why: str) -> TaskError:
    return TaskError(f"not an image reference: {text!r}: {why}", hint=FORMS)
