"""Artifacts: the files of an agent's sandbox that a verifier with a sandbox of its own gets."""

import fnmatch
import io
import posixpath
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field

from prorl_service.agents.harbor.data import Artifact
from prorl_service.sandbox.base import Sandbox

CONVENTION = Artifact(source="/logs/artifacts")
"""Directory whose content is an artifact of every task."""


@dataclass(slots=True)
class Artifacts:
    files: dict[str, bytes] = field(default_factory=dict)
    """Content of files, by their absolute paths."""
    directories: dict[str, bytes] = field(default_factory=dict)
    """Tars of directories, by their absolute paths."""
    missing: list[str] = field(default_factory=list)

    async def put(self, sandbox: Sandbox) -> None:
        for path, tar in self.directories.items():
            await sandbox.restore(path, tar)
        for path, content in self.files.items():
            await sandbox.upload(path, content)


async def collected(sandbox: Sandbox, wanted: Sequence[Artifact], workdir: str) -> Artifacts:
    """Returns what is there; the rest is `missing`, as the agent may not have made it."""
    found = Artifacts()
    for artifact in (CONVENTION, *wanted):
        path = posixpath.join(workdir, artifact.source)
        try:
            found.directories[path] = _without(await sandbox.snapshot(path), artifact.exclude)
        except NotADirectoryError:
            await _add_file(found, sandbox, path)
        except OSError:
            found.missing.append(path)
    return found


async def _add_file(found: Artifacts, sandbox: Sandbox, path: str) -> None:
    try:
        found.files[path] = await sandbox.download(path)
    except OSError:
        found.missing.append(path)


def _without(tar: bytes, patterns: Sequence[str]) -> bytes:
    """Leaves out what matches a pattern, as tar's own --exclude does: a path, or a name in it."""
    if not patterns:
        return tar
    content = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(tar)) as old,
        tarfile.open(fileobj=content, mode="w") as new,
    ):
        for entry in old:
            if not _is_excluded(entry.name, patterns):
                new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)
    return content.getvalue()


def _is_excluded(path: str, patterns: Sequence[str]) -> bool:
    parts = path.split("/")
    starts = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return any(
        fnmatch.fnmatchcase(one, pattern.strip("./"))
        for pattern in patterns
        for one in (*starts, *parts)
    )
