"""Chooses the builder of a Dockerfile: the first that works on this host and can do all of it.

    Apptainer with BuildKit   `buildkit`
    buildah                   `buildah`
    spython                   `conversion`: simple files

Each is tried once a process. What none can do is refused with the instruction, its line, and the
builder that could. Then `apptainer build` makes the SIF file.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from prorl_service.errors import ProRLError, SandboxError, TaskError
from prorl_service.sandbox.images.apptainer_build import Source
from prorl_service.sandbox.images.dockerfiles import checks
from prorl_service.sandbox.images.dockerfiles.buildah import INSTALL, Buildah
from prorl_service.sandbox.images.dockerfiles.buildkit import BuildKit
from prorl_service.sandbox.images.dockerfiles.context import Context, unpack
from prorl_service.sandbox.images.dockerfiles.conversion import Conversion
from prorl_service.sandbox.images.dockerfiles.rungs import Base, Obstacle, Rung, Work
from prorl_service.sandbox.images.dockerfiles.syntax import Dockerfile, Instruction


class Bases(Protocol):
    """The images that Dockerfiles begin with."""

    async def is_here(self, name: str) -> bool:
        """Returns whether the cache has the image, or another in its place."""

    def get(self, name: str) -> AbstractAsyncContextManager[Base]:
        """Gets the image, while it is in use; fetches it if it is missing. Raises `ProRLError`."""


class Ladder:
    """The builders of this host, for one event loop."""

    def __init__(self, rungs: tuple[Rung, ...] | None = None) -> None:
        self.rungs = rungs or (BuildKit(), Buildah(), Conversion())
        self._failures: dict[str, str | None] | None = None
        self._trying = asyncio.Lock()

    async def failures(self, workspace: Path) -> Mapping[str, str | None]:
        """Returns why each builder does not work here, by name; None for one that works."""
        async with self._trying:
            if self._failures is None:
                self._failures = {rung.name: await rung.trial(workspace) for rung in self.rungs}
            return self._failures

    async def fetches_images(self, workspace: Path) -> bool:
        """Returns whether the first builder that works fetches images itself."""
        return (await self.failures(workspace)).get(BuildKit.name, "") is None

    async def choose(self, work: Work) -> Rung:
        """Raises `SandboxError` if no builder works here, `TaskError` if none can do the file."""
        failures = await self.failures(work.workspace)
        obstacles: dict[str, Obstacle] = {}
        for rung in self.rungs:
            obstacle = rung.obstacle(work)
            if obstacle is not None:
                obstacles[rung.name] = obstacle
            elif failures[rung.name] is None:
                return rung
        working = [rung.name for rung in self.rungs if failures[rung.name] is None]
        if not working:
            missing = "; ".join(f"{name}: {why}" for name, why in failures.items())
            raise SandboxError(
                f"no builder of Dockerfiles works here: {missing}", hint=INSTALL, retryable=False
            )
        able = [rung.name for rung in self.rungs if rung.name not in obstacles]
        raise _refusal(work, working[-1], obstacles[working[-1]], able, failures)


@dataclass(frozen=True, slots=True)
class DockerfileSource:
    """Makes the image of a stored build context."""

    shown: str
    archive: str
    """Reference of the context's archive."""
    ladder: Ladder
    bases: Bases
    network: bool

    async def make(self, made: Path, *, workspace: Path, timeout_s: float) -> Mapping[str, Any]:
        context = await asyncio.to_thread(unpack, self.archive, workspace / "context", self.shown)
        checks.check(context, network=self.network)
        async with AsyncExitStack() as leases:
            bases = await self._bases(context, workspace, leases)
            work = Work(self.shown, context, bases, workspace, self.network, timeout_s)
            rung = await self.ladder.choose(work)
            ready = await rung.make(work)
            source = Source(
                self.shown,
                lambda _: ready.uri,
                cwd=context.directory,
                explain=lambda messages, error: rung.explain(work, messages, error),
            )
            await source.make(made, workspace=workspace, timeout_s=timeout_s)
        return ready.oci

    async def _bases(
        self, context: Context, workspace: Path, leases: AsyncExitStack
    ) -> dict[str, Base]:
        """Gets the images that the file names. BuildKit gets its own, unless one is here."""
        named = checks.images(context.dockerfile)
        here = [name for name in named if await self.bases.is_here(name)]
        if self.network and not here and await self.ladder.fetches_images(workspace):
            return {}
        return {
            name: await self._base(name, instruction, context.dockerfile, leases)
            for name, instruction in named.items()
        }

    async def _base(
        self, name: str, instruction: Instruction, dockerfile: Dockerfile, leases: AsyncExitStack
    ) -> Base:
        try:
            base = await leases.enter_async_context(self.bases.get(name))
        except ProRLError as error:
            message = dockerfile.error(instruction, error.message).message
            raise type(error)(message, hint=error.hint, retryable=error.retryable) from error
        triggers = base.oci.get("OnBuild")
        if triggers:
            raise dockerfile.error(
                instruction, f"ONBUILD is not supported, and this image has it: {triggers[0]}"
            )
        return base


def _refusal(
    work: Work,
    rung: str,
    obstacle: Obstacle,
    able: list[str],
    failures: Mapping[str, str | None],
) -> TaskError:
    others = "; ".join(f"{name} would do it: {failures[name]}" for name in able)
    hint = f"{INSTALL} ({others})" if Buildah.name in able else others
    why = f"{rung} cannot do it: {obstacle.why}"
    if obstacle.instruction is None:
        return TaskError(f"{work.shown}: {why}", hint=hint)
    return work.context.dockerfile.error(obstacle.instruction, why, hint=hint)
