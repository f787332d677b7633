"""Digest and size of the image in an OCI layout, an OCI archive or a Docker archive.

Reads only small members and unpacks nothing. Blocking: call it in a thread.
"""

import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from prorl_service.errors import TaskError
from prorl_service.sandbox.images import oci_manifest
from prorl_service.sandbox.images.references import ArchiveReference, LayoutReference

TAG_ANNOTATION = "org.opencontainers.image.ref.name"
MAX_MEMBER_BYTES = 8 << 20

Read = Callable[[str], bytes]
"""Function from a member's name to its content; raises `KeyError` or `OSError`."""


@dataclass(frozen=True, slots=True)
class Content:
    digest: str
    size_bytes: int | None
    """Size of its layers, if they are compressed."""


def inspect(reference: LayoutReference | ArchiveReference) -> Content:
    """Returns the content. Raises `TaskError` if it is missing, broken or not exactly one image."""
    whose = str(reference)
    if not reference.path.exists():
        raise TaskError(f"{whose}: there is no file or directory {reference.path}")
    with _broken_as_task_error(whose):
        if isinstance(reference, LayoutReference):
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
        "mediaType": orjson.loads(content).get("mediaType", oci_manifest.IMAGE_TYPES[0]),
        "digest": digest,
        "size": len(content),
    }
    (path / "index.json").write_bytes(orjson.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return f"oci:{path}"


def _layout(read: Read, tag: str | None, whose: str) -> Content:
    entries = orjson.loads(read("index.json"))["manifests"]
    digest = str(_choose_tag(entries, tag, whose)["digest"])
    manifest = _blob(read, digest, whose)
    chosen = oci_manifest.choose_platform(manifest, whose)
    if chosen is not None:
        digest, manifest = chosen, _blob(read, chosen, whose)
    return Content(digest, oci_manifest.layers_bytes(manifest))


def _choose_tag(entries: list[dict[str, Any]], tag: str | None, whose: str) -> dict[str, Any]:
    tags = [entry.get("annotations", {}).get(TAG_ANNOTATION) for entry in entries]
    found = [entry for entry, its in zip(entries, tags, strict=True) if tag in (None, its)]
    if len(found) != 1:
        have = ", ".join(sorted(its or "one without a tag" for its in tags)) or "nothing"
        raise TaskError(f"{whose}: it must name one image; there is {have}")
    return found[0]


def _blob(read: Read, digest: str, whose: str) -> dict[str, Any]:
    content = read(f"blobs/{digest.replace(':', '/')}")
    if oci_manifest.digest_of(content) != digest:
        raise TaskError(f"{whose}: it is broken: the content of {digest} has another digest")
    return oci_manifest.parse(content, whose)


def _docker_archive(read: Read, whose: str) -> Content:
    """Uses the image's id: the digest of its configuration, which lists its layers' digests."""
    images = orjson.loads(read("manifest.json"))
    if len(images) != 1:
        raise TaskError(f"{whose}: it must have one image; it has {len(images)}")
    return Content(oci_manifest.digest_of(read(images[0]["Config"])), None)


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
