"""Shapes of Dockerfiles with what must become of each: built and checked in a sandbox, or refused.

`shapes/NAME.Dockerfile` is a shape, `shapes.toml` the outcome. They begin with `BASE`, in whose
place the cache has any image with bash, coreutils, grep and sed. Needs no network.
"""

import io
import re
import tarfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from prorl_service.errors import ProRLError
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.images import ImageCache, ImageConfig, context_archive
from prorl_service.sandbox.images.dockerfiles import DockerfileBuilders
from prorl_service.sandbox.kinds.apptainer import ApptainerProvider

BASE = "debian:bookworm-slim"
FILES = {
    "a.txt": "a\n",
    "b.txt": "b\n",
    "dir/c.txt": "c\n",
    "dir/sub/deep.txt": "deep\n",
    "with space.txt": "space\n",
    "run.sh": "#!/bin/sh\necho ran\n",
}
"""Files of every shape's context, besides tree.tar."""

CHECK_TIMEOUT_S = 60.0
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    check: str | None = None
    """Command that succeeds in a sandbox of the image."""
    refused: str | None = None
    """Pattern of the error, if it is refused."""
    workdir: str | None = None
    user: str | None = None
    ignore: str | None = None
    """Content of .dockerignore."""
    network: bool = True
    """False if it is built with the network of RUN turned off."""

    @property
    def text(self) -> str:
        return (_HERE / "shapes" / f"{self.name}.Dockerfile").read_text()


@dataclass(frozen=True, slots=True)
class Outcome:
    shape: str
    builder: str
    outcome: str
    """`built`, `refused`, or what is wrong."""
    ok: bool
    seconds: float


def shapes() -> list[Shape]:
    described = tomllib.loads((_HERE / "shapes.toml").read_text())
    return [Shape(name, **expected) for name, expected in described.items()]


def write_context(shape: Shape, directory: Path) -> Path:
    for name, content in {**FILES, "Dockerfile": shape.text}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (directory / "run.sh").chmod(0o755)
    with tarfile.open(directory / "tree.tar", "w") as tar:
        entry = tarfile.TarInfo("tree/file")
        entry.size = len(b"inside\n")
        tar.addfile(entry, io.BytesIO(b"inside\n"))
    if shape.ignore is not None:
        (directory / ".dockerignore").write_text(shape.ignore)
    return directory


async def try_shape(
    shape: Shape, builders: DockerfileBuilders, *, base: str, root: Path, work: Path
) -> Outcome:
    """Builds a shape by the first of `builders`, in a cache at `root`. `work` is new."""
    cache = ImageCache(
        root,
        bases=[f"{BASE}={base}"],
        build_network=shape.network,
        builders=builders,
    )
    reference = context_archive(write_context(shape, work))
    began_at = time.monotonic()
    try:
        async with cache.image(reference):
            wrong = await _wrong(shape, cache, reference)
        outcome = wrong or "built"
        ok = wrong is None
    except ProRLError as error:
        ok = shape.refused is not None and re.search(shape.refused, error.message) is not None
        outcome = "refused" if ok else error.message
    return Outcome(shape.name, builders.builders[0].name, outcome, ok, time.monotonic() - began_at)


async def _wrong(shape: Shape, cache: ImageCache, reference: str) -> str | None:
    """Returns what is wrong with a built image, if anything is."""
    if shape.check is None:
        return "built, but must be refused"
    config = await cache.config(reference)
    if (config.workdir or "/", config.user or None) != (shape.workdir or "/", shape.user):
        return f"its configuration is {_of_places(config)}"
    limits = SandboxLimits(memory_mb=512, disk_mb=16)
    async with ApptainerProvider(cache.image) as provider:
        sandbox = provider.create(image=reference, limits=limits)
        try:
            await sandbox.start()
            command = {"command": shape.check}
            result = await sandbox.call_tool("bash", command, timeout_s=CHECK_TIMEOUT_S)
        finally:
            await sandbox.stop()
    return None if result.data["exit_code"] == 0 else f"the check failed: {result.output}"


def _of_places(config: ImageConfig) -> str:
    return f"workdir {config.workdir}, user {config.user}"
