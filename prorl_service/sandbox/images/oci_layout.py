"""OCI and Docker manifests, and the image in an OCI layout, an OCI archive or a Docker archive: its
digest and its size.

Reads only small members and unpacks nothing. Blocking: call it in a thread.
"""

import hashlib
import platform
import re
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from prorl_service.errors import TaskError
from prorl_service.sandbox.images.references import FileReference

IMAGE_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MEDIA_TYPES = IMAGE_TYPES + INDEX_TYPES

_COMPRESSED = re.compile(r"[.+](gzip|zstd)$")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PLATFORM = f"linux/{_ARCHITECTURES.get(platform.machine(), platform.machine())}"
"""This machine's platform, as manifests and Dockerfiles name it."""
TAG_ANNOTATION = "org.opencontainers.image.ref.name"
MAX_MEMBER_BYTES = 8 << 20

Read = Callable[[str], bytes]
"""Function from a member's name to its content; raises `KeyError` or `OSError`."""


@dataclass(frozen=True, slots=True)
class LayoutContent:
    digest: str
    size_bytes: int | None
    """Size of its layers, if they are compressed."""


def inspect(reference: FileReference) -> LayoutContent:
    """Returns the content. Raises `TaskError` if it is missing, broken or not exactly one image."""
    whose = str(reference)
    if not reference.path.exists():
        raise TaskError(f"{whose}: there is no file or directory {reference.path}")
    with _broken_as_task_error(whose):
        if reference.form == "oci":
            return _layout(lambda name: (reference.path / name).read_bytes(), reference.tag, whose)
        with tarfile.open(reference.path) as tar:
            read = _member_reader(tar)
            if reference.form == "oci-archive":
                return _layout(read, None, whose)
            return _docker_archive(read, whose)


def view(layout: Path, digest: str, workspace: Path) -> str:
    """Makes a layout with only that image: apptainer does not understand tags of layouts."""
    path = workspace / "layout"
    path.mkdir()
    (path / "blobs").symlink_to(layout / "blobs")
    (path / "oci-layout").write_bytes(orjson.dumps({"imageLayoutVersion": "1.0.0"}))
    content = (layout / "blobs" / digest.replace(":", "/")).read_bytes()
    entry = {
        "mediaType": orjson.loads(content).get("mediaType", IMAGE_TYPES[0]),
        "digest": digest,
        "size": len(content),
    }
    (path / "index.json").write_bytes(orjson.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return f"oci:{path}"


def _layout(read: Read, tag: str | None, whose: str) -> LayoutContent:
    entries = orjson.loads(read("index.json"))["manifests"]
    digest = str(_choose_tag(entries, tag, whose)["digest"])
    manifest = _blob(read, digest, whose)
    chosen = choose_platform(manifest, whose)
    if chosen is not None:
        digest, manifest = chosen, _blob(read, chosen, whose)
    return LayoutContent(digest, layers_bytes(manifest))


def _choose_tag(entries: list[dict[str, Any]], tag: str | None, whose: str) -> dict[str, Any]:
    tags = [entry.get("annotations", {}).get(TAG_ANNOTATION) for entry in entries]
    found = [entry for entry, its in zip(entries, tags, strict=True) if tag in (None, its)]
    if len(found) != 1:
        have = ", ".join(sorted(its or "one without a tag" for its in tags)) or "nothing"
        raise TaskError(f"{whose}: it must name one image; there is {have}")
    return found[0]


def _blob(read: Read, digest: str, whose: str) -> dict[str, Any]:
    content = read(f"blobs/{digest.replace(':', '/')}")
    if digest_of(content) != digest:
        raise TaskError(f"{whose}: it is broken: the content of {digest} has another digest")
    return read_manifest(content, whose)


def _docker_archive(read: Read, whose: str) -> LayoutContent:
    """Uses the image's id: the digest of its configuration, which lists its layers' digests."""
    images = orjson.loads(read("manifest.json"))
    if len(images) != 1:
        raise TaskError(f"{whose}: it must have one image; it has {len(images)}")
    return LayoutContent(digest_of(read(images[0]["Config"])), None)


def _member_reader(tar: tarfile.TarFile) -> Read:
    members = {member.name: member for member in tar}

    def read(name: str) -> bytes:
        member = members[name]
        if member.issym() or member.islnk():
            member = members[member.linkname.removeprefix("../")]
        file = tar.extractfile(member)
        if file is None or member.size > MAX_MEMBER_BYTES:
            raise KeyError(name)
        return file.read()

    return read


@contextmanager
def _broken_as_task_error(whose: str) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, orjson.JSONDecodeError, TypeError) as error:
        raise TaskError(f"{whose}: it is broken: {error}") from error
    except (KeyError, FileNotFoundError, NotADirectoryError, AttributeError) as error:
        raise TaskError(f"{whose}: it is not complete, or in another format: {error}") from error
    except OSError as error:
        raise TaskError(f"{whose}: it cannot be read: {error}") from error


# --- manifests ---------------------------------------------------------------------------------


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def read_manifest(content: bytes, whose: str) -> dict[str, Any]:
    try:
        manifest = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise TaskError(f"{whose}: its manifest is not JSON: {error}") from error
    if not isinstance(manifest, dict):
        raise TaskError(f"{whose}: its manifest is not an object")
    return manifest


def choose_platform(manifest: dict[str, Any], whose: str) -> str | None:
    """Returns the digest of this machine's image in an index; None if `manifest` is no index."""
    if "manifests" not in manifest:
        return None
    offered = {_platform(entry): str(entry["digest"]) for entry in reversed(manifest["manifests"])}
    if PLATFORM not in offered:
        raise TaskError(
            f"{whose}: there is no image for {PLATFORM}, only for {', '.join(sorted(offered))}"
        )
    return offered[PLATFORM]


def layers_bytes(manifest: dict[str, Any]) -> int | None:
    """Returns the size of the layers, about the image's; None unless all are compressed."""
    layers = manifest.get("layers", [])
    if not layers or not all(_COMPRESSED.search(layer.get("mediaType", "")) for layer in layers):
        return None
    return sum(int(layer["size"]) for layer in layers)


def _platform(entry: dict[str, Any]) -> str:
    described = entry.get("platform", {})
    return f"{described.get('os', '?')}/{described.get('architecture', '?')}"
