"""Images that hold what a task's verifier fetches from the network, so that it needs none later.

The verifier runs once with network, after the task's own solution; what it wrote apart from its
logs, the tests and the solution's work becomes a layer on the task's image. Runs nothing itself.
"""

import io
import shutil
import tarfile
import tempfile
from collections.abc import Collection
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from prorl_service.agents.harbor.data import HarborData, Step
from prorl_service.agents.harbor.directory.reading import TaskDirectory
from prorl_service.agents.harbor.probes import ProbeAgent
from prorl_service.agents.harbor.verification import Verified, Work
from prorl_service.sandbox.images.dockerfiles.context import DOCKERFILE, context_archive
from prorl_service.sandbox.layers import Layer
from prorl_service.schemas import Task

FETCHED = "prorl-fetched.tar"
DROPPED = ("tests", "solution", "logs", "tmp", "workspace", "dev", "proc", "sys", ".prorl", "run")
OFFLINE = {"UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}
"""Variables by which installers take what they have, and do not wait for a network."""


@dataclass(slots=True)
class Fetched:
    """What the verifier of a task wrote, and the hosts that it reached."""

    tar: bytes
    files: int
    hosts: dict[str, int] = field(default_factory=dict)


class PreparingAgent(ProbeAgent):
    """Keeps what verifiers write, by the ids of tasks."""

    name: ClassVar[str] = "harbor_prepare"
    keeps_verifiers: ClassVar[bool] = True
    fetched: ClassVar[dict[str, list[Fetched]]] = {}

    def verified(self, step: Step, work: Work, verified: Verified) -> None:
        super().verified(step, work, verified)
        assert verified.layer is not None
        mine = set() if work.layer is None else names(work.layer)
        workdir = (self.data.place.workdir or "").strip("/")
        tar, files = _kept(verified.layer, mine, (*DROPPED, *([workdir] if workdir else ())))
        self.fetched.setdefault(self.task.task_id, []).append(
            Fetched(tar, files, {**verified.hosts})
        )


def names(layer: Layer) -> set[str]:
    found: set[str] = set()
    for piece in layer.pieces():
        with tarfile.open(fileobj=io.BytesIO(piece)) as tar:
            found.update(entry.name for entry in tar if not entry.isdir())
    return found


def _kept(layer: Layer, without: Collection[str], dropped: Collection[str]) -> tuple[bytes, int]:
    """Returns the tar of a layer's files, apart from some, and their number. Deletions are left
    out."""
    content, kept = io.BytesIO(), set[str]()
    [whole] = layer.pieces(max(1, layer.size_bytes))  # a link may be far from its file
    with (
        tarfile.open(fileobj=content, mode="w") as new,
        tarfile.open(fileobj=io.BytesIO(whole)) as old,
    ):
        for entry in old:
            is_dropped = any(_is_below(entry.name, one) for one in dropped)
            if is_dropped or entry.name in without or "/.wh." in f"/{entry.name}":
                continue
            if not entry.isdir():
                kept.add(entry.name)
            if entry.islnk() and entry.linkname not in kept:
                file = _as_file(entry, old.getmember(entry.linkname))
                new.addfile(file, old.extractfile(entry))
            else:
                new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)
    return content.getvalue(), len(kept)


def _as_file(link: tarfile.TarInfo, file: tarfile.TarInfo) -> tarfile.TarInfo:
    """Returns the entry of a file for one of its further names."""
    entry = copy(file)
    entry.name = link.name
    return entry


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


def prepared(directory: TaskDirectory, task: Task, fetched: list[Fetched]) -> Task:
    """Returns the task with images that hold what its verifiers fetched. Raises `TaskError`."""
    data = HarborData.model_validate(task.data)
    image = task.image
    for index, (step, found) in enumerate(zip(data.steps, fetched, strict=False)):
        step.verifier.environment = {**OFFLINE, **step.verifier.environment}
        if not found.files:
            continue
        place = step.verifier.place
        if place is not None and place.image is not None:
            tests = directory.tests_of_image(index)
            place.image = _image(tests, None if tests else place.image, found.tar)
        else:
            named = directory.toml.environment.docker_image
            image = _image(None if named else directory.path / "environment", named, found.tar)
    changed = data.model_dump(mode="json", exclude_defaults=True)
    return task.model_copy(update={"image": image, "data": changed})


def _image(directory: Path | None, named: str | None, tar: bytes) -> str:
    """Returns the reference of an image with these files on top."""
    with tempfile.TemporaryDirectory(prefix="prorl-prepare-") as temporary:
        context = Path(temporary, "context")
        if directory is None:
            context.mkdir()
            text = f"FROM {named}\n"
        else:
            shutil.copytree(directory, context, symlinks=True)
            text = (context / DOCKERFILE).read_text()
        (context / FETCHED).write_bytes(tar)
        (context / DOCKERFILE).write_text(f"{text.rstrip()}\nADD {FETCHED} /\n")
        return context_archive(context)
