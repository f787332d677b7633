"""Images that hold what a task's verifier fetches from the network, so that it needs none later.

The verifier runs once with network, after the task's own solution. What it fetched becomes a layer
on the task's image, and is no work of an agent's. Runs nothing itself.
"""

import hashlib
import io
import re
import tarfile
import tempfile
from collections.abc import Collection, Iterator
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from prorl_service.agents.base import RolloutContext
from prorl_service.agents.harbor.data import HarborData, Step
from prorl_service.agents.harbor.probes import ProbeAgent
from prorl_service.agents.harbor.verification import Verified, Work
from prorl_service.sandbox.archives import load_archive
from prorl_service.sandbox.images.dockerfiles.context import (
    DOCKERFILE,
    IGNORE_FILE,
    context_archive,
    unpack,
)
from prorl_service.sandbox.images.references import DockerfileReference, parse
from prorl_service.sandbox.layers import Layer
from prorl_service.schemas import Task

FETCHED = "prorl-fetched.tar"
INSTALLED_TO = re.compile(r"(usr|opt|etc|s?bin|lib(32|64)?|var/cache|var/lib)/")
CACHED_IN = re.compile(r"(root|home/[^/]+)/\.")
"""Caches and tools of a user, which may be below the working directory."""
_COMPILED = re.compile(r"__pycache__/([^/.]+)\.[^/]+\.pyc$")
OFFLINE = {"UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}
"""Variables by which installers take what they have, and do not wait for a network."""


@dataclass(slots=True)
class Fetched:
    """What the verifier of a task fetched, and the hosts that it reached."""

    tar: bytes
    files: list[str]
    trees: list[str]
    """Files and directories that hold these files, and nothing of the solution's."""
    hosts: dict[str, int] = field(default_factory=dict)


class PreparingAgent(ProbeAgent):
    """Keeps what verifiers fetch, by the ids of tasks: of the last rollout of each."""

    name: ClassVar[str] = "harbor_prepare"
    keeps_verifiers: ClassVar[bool] = True
    fetched: ClassVar[dict[str, list[Fetched]]] = {}

    async def init(self, rollout: RolloutContext) -> None:
        self.fetched[self.task.task_id] = []
        await super().init(rollout)

    def verified(self, step: Step, work: Work, verified: Verified) -> None:
        super().verified(step, work, verified)
        assert verified.layer is not None
        assert self._workplace is not None
        workdir = self._workplace.workdir.strip("/")
        mine = set() if work.layer is None else names(work.layer)
        tar, files = kept(verified.layer, mine, workdir, set(_digests(step)))
        found = Fetched(tar, files, _trees(files, {*mine, workdir}), {**verified.hosts})
        self.fetched[self.task.task_id].append(found)


def _digests(step: Step) -> Iterator[bytes]:
    """Yields the digests of the tests' files."""
    for archive in step.verifier.tests:
        with tarfile.open(fileobj=io.BytesIO(load_archive(archive))) as tar:
            yield from (_digest(tar, entry) for entry in tar if entry.isreg())


def _digest(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(entry)
    assert file is not None
    return hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]


def names(layer: Layer) -> set[str]:
    found: set[str] = set()
    for piece in layer.pieces():
        with tarfile.open(fileobj=io.BytesIO(piece)) as tar:
            found.update(entry.name for entry in tar if not entry.isdir())
    return found


def kept(
    layer: Layer, without: Collection[str], workdir: str, tests: Collection[bytes]
) -> tuple[bytes, list[str]]:
    """Returns the tar of what a verifier fetched, and the paths of its files: what is below caches
    and tools, apart from some paths and from files with the content of tests. Deletions are left
    out."""
    content = io.BytesIO()
    files: dict[str, None] = {}
    written = names(layer)
    [whole] = layer.pieces(max(1, layer.size_bytes))  # a link may be far from its file
    with (
        tarfile.open(fileobj=content, mode="w") as new,
        tarfile.open(fileobj=io.BytesIO(whole)) as old,
    ):
        for entry in old:
            path = entry.name
            if path in without or "/.wh." in f"/{path}" or not _is_fetched(path, workdir):
                continue
            if (source := _COMPILED.sub(r"\1.py", path)) != path and source not in written:
                continue  # compiled from the image's code
            if (entry.isreg() or entry.islnk()) and _digest(old, entry) in tests:
                continue
            if not entry.isdir():
                files[path] = None
            if entry.islnk() and entry.linkname not in files:
                file = _as_file(entry, old.getmember(entry.linkname))
                new.addfile(file, old.extractfile(entry))
            else:
                new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)
    return content.getvalue(), list(files)


def _is_fetched(path: str, workdir: str) -> bool:
    if CACHED_IN.match(path):
        return True
    return bool(INSTALLED_TO.match(path)) and not (workdir and f"{path}/".startswith(f"{workdir}/"))


def _trees(paths: Collection[str], others: Collection[str]) -> list[str]:
    """Returns the fewest files and directories that hold these paths and none of the others."""
    taken = {root for path in others for root in _roots(path)}
    return sorted({next(root for root in _roots(path) if root not in taken) for path in paths})


def _roots(path: str) -> Iterator[str]:
    """Yields the directories of a path, the largest first, and itself."""
    parts = path.split("/")
    return ("/".join(parts[:end]) for end in range(1, len(parts) + 1))


def _as_file(link: tarfile.TarInfo, file: tarfile.TarInfo) -> tarfile.TarInfo:
    """Returns the entry of a file for one of its further names."""
    entry = copy(file)
    entry.name = link.name
    return entry


def prepared(task: Task, fetched: list[Fetched]) -> Task:
    """Returns the task with images that hold what its verifiers fetched. Raises `TaskError`."""
    data = HarborData.model_validate(task.data)
    image = task.image
    for step, found in zip(data.steps, fetched, strict=False):
        step.verifier.environment = {**OFFLINE, **step.verifier.environment}
        place = step.verifier.place
        if not found.files:
            continue
        if place is not None and place.image is not None:
            place.image = _image(place.image, found.tar)
        elif image is not None:
            image = _image(image, found.tar)
            data.protected = sorted({*data.protected, *found.trees})
    changed = data.model_dump(mode="json", exclude_defaults=True)
    return task.model_copy(update={"image": image, "data": changed})


def _image(base: str, tar: bytes) -> str:
    """Returns the reference of an image with these files on top."""
    with tempfile.TemporaryDirectory(prefix="prorl-prepare-") as temporary:
        context = Path(temporary, "context")
        reference = parse(base)
        if isinstance(reference, DockerfileReference):
            unpack(reference.archive, context, base)
            (context / IGNORE_FILE).unlink(missing_ok=True)  # its files are left out already
            text = (context / DOCKERFILE).read_text()
        else:
            context.mkdir()
            text = f"FROM {base}\n"
        (context / FETCHED).write_bytes(tar)
        (context / DOCKERFILE).write_text(f"{text.rstrip()}\nADD {FETCHED} /\n")
        return context_archive(context)
