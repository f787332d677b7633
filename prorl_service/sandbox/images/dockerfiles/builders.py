"""Chooses the builder of a Dockerfile: the first that works on this host and can do all of it.

buildah comes first, then spython (`conversion`), which knows simple files only. Each is tried once
a process. What none can do is refused with the instruction, its line, and the builder that could.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_service.errors import ProRLError, SandboxError, TaskError
from prorl_service.sandbox.images.dockerfiles.buildah import INSTALL, Buildah
from prorl_service.sandbox.images.dockerfiles.context import Context, unpack
from prorl_service.sandbox.images.dockerfiles.conversion import Conversion
from prorl_service.sandbox.images.dockerfiles.stages import images
from prorl_service.sandbox.images.dockerfiles.syntax import Dockerfile, Instruction
from prorl_service.sandbox.images.dockerfiles.work import (
    BaseImage,
    DockerfileBuild,
    DockerfileBuilder,
)


class DockerfileBuilders:
    """The builders of this host, for one event loop."""

    def __init__(self, builders: tuple[DockerfileBuilder, ...] | None = None) -> None:
        self.builders = builders or (Buildah(), Conversion())
        self._failures: dict[str, str | None] | None = None
        self._trying = asyncio.Lock()

    async def failures(self, workspace: Path) -> Mapping[str, str | None]:
        """Returns why each builder does not work here, by name; None for one that works."""
        async with self._trying:
            if self._failures is None:
                self._failures = {one.name: await one.trial(workspace) for one in self.builders}
            return self._failures

    async def choose(self, build: DockerfileBuild) -> DockerfileBuilder:
        """Raises `SandboxError` if no builder works here, `TaskError` if none can do the file."""
        failures = await self.failures(build.workspace)
        able = []
        refusal: TaskError | None = None
        for builder in self.builders:
            obstacle = builder.obstacle(build)
            if obstacle is not None:
                refusal = obstacle if failures[builder.name] is None else refusal
            elif failures[builder.name] is None:
                return builder
            else:
                able.append(builder.name)
        if refusal is None:
            missing = "; ".join(f"{name}: {why}" for name, why in failures.items())
            raise SandboxError(
                f"no builder of Dockerfiles works here: {missing}", hint=INSTALL, retryable=False
            )
        others = "; ".join(f"{name} would do it: {failures[name]}" for name in able)
        refusal.hint = f"{INSTALL} ({others})" if Buildah.name in able else others
        raise refusal


@dataclass(frozen=True, slots=True)
class DockerfileSource:
    """Makes the image of a stored build context."""

    shown: str
    archive: str
    """Reference of the context's archive."""
    builders: DockerfileBuilders
    base: Callable[[str], AbstractAsyncContextManager[BaseImage]]
    """Gets an image of the cache, or another in its place, while it is in use."""
    network: bool

    async def make(self, made: Path, *, workspace: Path, timeout_s: float) -> Mapping[str, Any]:
        context = await asyncio.to_thread(unpack, self.archive, workspace / "context", self.shown)
        async with AsyncExitStack() as leases:
            bases = await self._bases(context, leases)
            build = DockerfileBuild(self.shown, context, bases, workspace, self.network, timeout_s)
            builder = await self.builders.choose(build)
            return await builder.make(build, made)

    async def _bases(self, context: Context, leases: AsyncExitStack) -> dict[str, BaseImage]:
        return {
            name: await self._base(name, instruction, context.dockerfile, leases)
            for name, instruction in images(context.dockerfile).items()
        }

    async def _base(
        self, name: str, instruction: Instruction, dockerfile: Dockerfile, leases: AsyncExitStack
    ) -> BaseImage:
        try:
            base = await leases.enter_async_context(self.base(name))
        except ProRLError as error:
            message = dockerfile.error(instruction, error.message).message
            raise type(error)(message, hint=error.hint, retryable=error.retryable) from error
        triggers = base.oci.get("OnBuild")
        if triggers:
            raise dockerfile.error(
                instruction, f"ONBUILD is not supported, and this image has it: {triggers[0]}"
            )
        return base
