"""OCI and Docker manifests as data: digests, the platform of this machine, sizes."""

import hashlib
import platform
import re
from typing import Any

import orjson

from prorl_service.errors import TaskError

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


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def parse(content: bytes, whose: str) -> dict[str, Any]:
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
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    wanted = f"linux/{architecture}"
    offered = {_platform(entry): str(entry["digest"]) for entry in reversed(manifest["manifests"])}
    if wanted not in offered:
        raise TaskError(
            f"{whose}: there is no image for {wanted}, only for {', '.join(sorted(offered))}"
        )
    return offered[wanted]


def layers_bytes(manifest: dict[str, Any]) -> int | None:
    """Returns the size of the layers, about the image's; None unless all are compressed."""
    layers = manifest.get("layers", [])
    if not layers or not all(_COMPRESSED.search(layer.get("mediaType", "")) for layer in layers):
        return None
    return sum(int(layer["size"]) for layer in layers)


def _platform(entry: dict[str, Any]) -> str:
    described = entry.get("platform", {})
    return f"{described.get('os', '?')}/{described.get('architecture', '?')}"
