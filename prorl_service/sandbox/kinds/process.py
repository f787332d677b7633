"""A sandbox that isolates nothing, for tests only: commands run as the service's own user.

They see its files, processes and network, and can harm all of them. Only the limits on memory and
file size per process hold; processes are not counted, the disk is not limited. `stop` and the
death of the service end all descendants, but some may outlive a `kill -9` of the server itself.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack

from prorl_service.errors import TaskError
from prorl_service.sandbox import programs
from prorl_service.sandbox.base import SandboxLimits, SandboxProvider, refuse_user
from prorl_service.sandbox.host import bundle, spec
from prorl_service.sandbox.host.processes import Process
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.host.zygotes import Zygotes
from prorl_service.utils import files


class ProcessSandboxProvider(SandboxProvider):
    kind = "process"

    def __init__(self) -> None:
        self._zygotes = Zygotes(_launch, user=None)

    def create(
        self, *, image: str | None, limits: SandboxLimits, user: str | None = None
    ) -> "ProcessSandbox":
        self.check(image)
        refuse_user(user)
        return ProcessSandbox(self._zygotes, "", limits)

    def check(self, image: str | None) -> None:
        if image is not None:
            raise TaskError(f"the process sandbox has no images, so {image!r} cannot be used")

    def prewarm(self, images: Sequence[str | None]) -> None:
        self._zygotes.prewarm("" for _ in images)

    async def close(self) -> None:
        await self._zygotes.close()


async def _launch(_: str, resources: AsyncExitStack) -> list[str]:
    return bundle.server(spec.ZYGOTE, at=str(bundle.directory()))


class ProcessSandbox(RemoteSandbox):
    """Works in a directory of its own from `start` to `stop`."""

    _workdir: str | None = None

    @property
    def programs(self) -> str:
        return str(programs.directory())

    @property
    def python(self) -> str:
        return str(bundle.directory() / "bin" / "python3")

    def _order(self) -> dict[str, object]:
        if self._workdir is None:
            self._workdir = str(files.temporary_directory("sandbox"))
        directory = str(bundle.directory())
        return {
            "namespaces": None,
            "environment": spec.host_environment(home=self._workdir, runtime=directory),
            "filter": "",
            "serve": spec.config(
                self._limits, workdir=self._workdir, own_processes=False, runtime=directory
            ),
        }

    def _end(self, child: Process) -> None:
        child.signal(signal.SIGTERM)

    async def clean_up(self) -> None:
        await super().clean_up()
        if self._workdir is None:
            return
        try:
            os.rmdir(self._workdir)  # most are empty: a thread would cost half a turn
        except OSError:
            await asyncio.to_thread(shutil.rmtree, self._workdir, ignore_errors=True)
