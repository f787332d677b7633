"""Tiny handmade images: an OCI layout with a few files, and archives of it."""

import gzip
import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


class Layout:
    """An OCI layout; `add` gives it an image."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[dict[str, Any]] = []
        (path / "blobs" / "sha256").mkdir(parents=True)
        (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def add(
        self,
        text: str,
        *,
        tag: str = "latest",
        padding: int = 0,
        config: dict[str, Any] | None = None,
    ) -> str:
        """Adds an image whose /marker is `text`. Returns the digest of its manifest."""
        files = {"marker": text.encode(), "bin/pad": _noise(padding), "etc/hosts": b""}
        return self._add_layer(_tar(files), tag, config)

    def add_tree(self, root: Path, *, tag: str, config: dict[str, Any] | None = None) -> str:
        """Adds an image of a root file system. Returns the digest of its manifest."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.add(root, arcname="", filter=_of_root)
        return self._add_layer(buffer.getvalue(), tag, config)

    def _add_layer(self, tree: bytes, tag: str, config: dict[str, Any] | None = None) -> str:
        layer = self._blob(
            gzip.compress(tree, mtime=0), "application/vnd.oci.image.layer.v1.tar+gzip"
        )
        image = {
            "architecture": ARCHITECTURE,
            "os": "linux",
            "config": config or {},
            "rootfs": {"type": "layers", "diff_ids": [_digest(tree)]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._blob(
                json.dumps(image).encode(), "application/vnd.oci.image.config.v1+json"
            ),
            "layers": [layer],
        }
        return self._list(self._blob(json.dumps(manifest).encode(), MANIFEST), tag)

    def add_index(self, digests: dict[str, str], *, tag: str) -> str:
        """Adds an index of images by architecture. Returns its digest."""
        entries = [
            {
                "mediaType": MANIFEST,
                "digest": digest,
                "size": self.blob_path(digest).stat().st_size,
                "platform": {"os": "linux", "architecture": architecture},
            }
            for architecture, digest in digests.items()
        ]
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
        return self._list(self._blob(json.dumps(index).encode(), INDEX), tag)

    def blob_path(self, digest: str) -> Path:
        return self.path / "blobs" / digest.replace(":", "/")

    def archive(self, path: Path) -> Path:
        with tarfile.open(path, "w") as tar:
            for name in ("oci-layout", "index.json", "blobs"):
                tar.add(self.path / name, arcname=name)
        return path

    def _list(self, descriptor: dict[str, Any], tag: str) -> str:
        descriptor = {**descriptor, "annotations": {"org.opencontainers.image.ref.name": tag}}
        others = [
            entry for entry in self.entries if entry["annotations"] != descriptor["annotations"]
        ]
        self.entries = [*others, descriptor]
        index = {"schemaVersion": 2, "manifests": self.entries}
        (self.path / "index.json").write_text(json.dumps(index))
        return str(descriptor["digest"])

    def _blob(self, content: bytes, media_type: str) -> dict[str, Any]:
        digest = _digest(content)
        self.blob_path(digest).write_bytes(content)
        return {"mediaType": media_type, "digest": digest, "size": len(content)}


def docker_archive(path: Path, text: str) -> Path:
    """Writes an image as `docker save` does."""
    layer = _tar({"marker": text.encode(), "bin/pad": b""})
    config = json.dumps(
        {
            "architecture": ARCHITECTURE,
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    ).encode()
    name = f"{_digest(config).removeprefix('sha256:')}.json"
    listing = [{"Config": name, "RepoTags": ["tiny:latest"], "Layers": ["layer.tar"]}]
    files = {"manifest.json": json.dumps(listing).encode(), name: config, "layer.tar": layer}
    path.write_bytes(_tar(files))
    return path


def root_file_system(path: Path, text: str, *, padding: int = 0) -> Path:
    (path / "bin").mkdir(parents=True)
    (path / "marker").write_text(text)
    (path / "bin" / "pad").write_bytes(_noise(padding))
    return path


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for directory in sorted({name.rpartition("/")[0] for name in files} - {""}):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _noise(size: int) -> bytes:
    """Returns bytes that cannot be compressed."""
    return b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(size // 32))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
