"""The image cache on disk. Blocking, and not locked within a process: `ImageCache` sees to both.

    blobs/sha256-HEX/image.sif    an image, complete if it is there at all
                     image.json   what it was made of, and the OCI configuration if the image has
                                  none inside; its modification time is the last use
                     lock         held by the process that makes or removes it
                     lease.TOKEN  held by a process that uses it
    refs/SHA256.json              what a tag or a local name stands for
    tmp/TOKEN/, tmp/TOKEN.claim   the work of a process, also apptainer's

The locks of an image are in its directory: a new file there makes an NFS client see the others.
A process that wants an image leases it, then looks for the lock; one that removes it locks it, then
looks for leases. So one of the two always notices the other.
"""

import hashlib
import os
import secrets
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from prorl_service.sandbox.images import sif
from prorl_service.sandbox.images.locks import (
    STALE_S,
    UNFINISHED,
    LockFile,
    file_system_time,
    is_abandoned,
)
from prorl_service.utils import processes

CHILD = "child"
"""Name of the file of a workspace with /proc/PID/stat of the program that works there."""


@dataclass(frozen=True, slots=True)
class Ref:
    reference: str
    listed: str
    """Digest of what the name pointed to when it was resolved: an image or an index."""
    digest: str
    size_bytes: int | None
    """Size of the compressed layers, if known."""


@dataclass(frozen=True, slots=True)
class CachedImage:
    digest: str
    path: Path
    """SIF file, or the record of an image that an engine has."""
    size_bytes: int
    source: str
    used_at: float
    """Time of the last use, in seconds since 1970."""
    in_use: bool
    names: tuple[str, ...]
    """Tags and local names that stand for it."""

    @property
    def is_local(self) -> bool:
        """True if it was made here, so that it cannot be fetched again."""
        return any(name.startswith("local:") for name in self.names)


class Store:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._blobs = root / "blobs"
        self._refs = root / "refs"
        self._tmp = root / "tmp"

    def prepare(self) -> None:
        for directory in (self._blobs, self._refs, self._tmp):
            directory.mkdir(parents=True, exist_ok=True)
        # Half-made images contain files that no other user should run.
        self._tmp.chmod(0o700)

    def image(self, digest: str) -> Path:
        return self._directory(digest) / "image.sif"

    def lock(self, digest: str) -> LockFile:
        return LockFile(self._directory(digest) / "lock")

    def lease(self, digest: str) -> LockFile:
        return LockFile(self._directory(digest) / f"lease.{secrets.token_hex(8)}")

    def _directory(self, digest: str) -> Path:
        return self._blobs / digest.replace(":", "-")

    # --- images ---------------------------------------------------------------------------------

    def is_ready(self, digest: str) -> bool:
        """Returns whether a process that has leased the image may use it."""
        directory = self._directory(digest)
        return not (directory / "lock").exists() and (directory / "image.sif").exists()

    def touch(self, digest: str) -> None:
        with suppress(FileNotFoundError):
            os.utime(self._directory(digest) / "image.json")

    def publish(self, digest: str, made: Path, source: str, oci: Mapping[str, Any]) -> None:
        made.chmod(0o644)
        with made.open("rb") as file:
            os.fsync(file.fileno())
        directory = self._directory(digest)
        directory.mkdir(exist_ok=True)
        _write_json(directory / "image.json", {"source": source, **({"oci": oci} if oci else {})})
        os.rename(made, self.image(digest))
        _sync_directory(directory)

    def oci_config(self, digest: str) -> dict[str, Any]:
        """Returns the OCI configuration of an image that is there; empty if it is unknown."""
        image = self.image(digest)
        kept = orjson.loads(image.with_name("image.json").read_bytes()).get("oci")
        return kept if isinstance(kept, dict) else sif.oci_config(image)

    def evict(self, digest: str) -> bool:
        """Removes an image and its names. Returns False if a process uses, makes or removes it."""
        lock = self.lock(digest)
        if not lock.take_over():
            return False
        try:
            if self._has_lease(digest):
                return False
            self.image(digest).unlink(missing_ok=True)
            (self._directory(digest) / "image.json").unlink(missing_ok=True)
            self._forget_refs(digest)
        finally:
            lock.release()
        with suppress(OSError):  # another process has just leased it
            self._directory(digest).rmdir()
        return True

    def entries(self) -> list[CachedImage]:
        """Returns complete images, least recently used first."""
        names: dict[str, list[str]] = {}
        for ref in self.refs():
            names.setdefault(ref.digest, []).append(ref.reference)
        found = []
        for directory in self._blobs.iterdir():
            digest = _digest(directory)
            with suppress(FileNotFoundError):  # removed meanwhile
                found.append(self._entry(digest, tuple(sorted(names.get(digest, ())))))
        return sorted(found, key=lambda entry: entry.used_at)

    def _entry(self, digest: str, names: tuple[str, ...]) -> CachedImage:
        image = self.image(digest)
        description = image.with_name("image.json")
        return CachedImage(
            digest=digest,
            path=image,
            size_bytes=image.stat().st_size,
            source=orjson.loads(description.read_bytes())["source"],
            used_at=description.stat().st_mtime,
            in_use=self._has_lease(digest),
            names=names,
        )

    def _has_lease(self, digest: str) -> bool:
        return any(not is_abandoned(lease) for lease in self._directory(digest).glob("lease.*"))

    # --- references -----------------------------------------------------------------------------

    def ref(self, reference: str) -> Ref | None:
        try:
            return Ref(**orjson.loads(self._ref_path(reference).read_bytes()))
        except FileNotFoundError:
            return None

    def set_ref(self, ref: Ref) -> None:
        _write_json(self._ref_path(ref.reference), asdict(ref))

    def refs(self) -> Iterator[Ref]:
        for path in self._refs.glob("*.json"):
            with suppress(FileNotFoundError):
                yield Ref(**orjson.loads(path.read_bytes()))

    def _forget_refs(self, digest: str) -> None:
        for ref in self.refs():
            if ref.digest == digest:
                self._ref_path(ref.reference).unlink(missing_ok=True)

    def _ref_path(self, reference: str) -> Path:
        return self._refs / f"{hashlib.sha256(reference.encode()).hexdigest()}.json"

    # --- work -----------------------------------------------------------------------------------

    def workspace(self) -> tuple[Path, LockFile]:
        """Names a directory for one piece of work, and the lock that names its owner."""
        path = self._tmp / secrets.token_hex(8)
        return path, LockFile(path.with_name(f"{path.name}.claim"))

    def sweep(self) -> None:
        """Removes what dead processes left, and kills the programs that still work for them."""
        for path in self._tmp.iterdir():
            is_workspace = not path.name.startswith(UNFINISHED) and path.suffix != ".claim"
            if is_workspace and is_abandoned(path.with_name(f"{path.name}.claim")):
                kill_recorded(path / CHILD)
                remove_tree(path)
        for lock in (*self._tmp.glob("*.claim"), *self._blobs.glob("*/lease.*")):
            if is_abandoned(lock, missing=False):
                lock.unlink(missing_ok=True)
        now = file_system_time(self._tmp)
        for pattern in ("*", "blobs/*"):
            for unfinished in self.root.glob(f"{pattern}/{UNFINISHED}*"):
                with suppress(FileNotFoundError):
                    if now - unfinished.stat().st_mtime > STALE_S:
                        unfinished.unlink()
        for directory in self._blobs.iterdir():
            if not (directory / "image.sif").exists():
                self.evict(_digest(directory))


def _digest(directory: Path) -> str:
    return directory.name.replace("-", ":", 1)


def kill_recorded(record: Path) -> None:
    """Kills the process group whose leader wrote `record`, if that is still the same process."""
    with suppress(FileNotFoundError, ProcessLookupError):
        stat_line = record.read_text()
        pid = int(stat_line.split()[0])
        if processes.start_time(pid) == processes.start_in_stat(stat_line):
            os.killpg(pid, signal.SIGKILL)


def remove_tree(path: Path) -> None:
    """Removes a tree, also closed directories and files of an ordinary user's subordinate ids."""
    for directory, names, _ in os.walk(path):
        for name in names:
            inner = Path(directory, name)
            if not inner.is_symlink():
                with suppress(PermissionError):
                    inner.chmod(inner.stat().st_mode | stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        namespace = ["unshare", "--map-root-user", "--map-auto", "--", "rm", "-rf", str(path)]
        subprocess.run(namespace, check=False, capture_output=True)


def _write_json(path: Path, content: dict[str, object]) -> None:
    unfinished = path.with_name(f"{UNFINISHED}{secrets.token_hex(8)}")
    with unfinished.open("wb") as file:
        file.write(orjson.dumps(content))
        file.flush()
        os.fsync(file.fileno())
    os.rename(unfinished, path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
