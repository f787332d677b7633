"""A sandbox that isolates nothing, for tests only: commands run as the service's own user.

They see its files, processes and network, and can harm all of them. Only the limits on memory and
file size per process hold; processes are not counted, the disk is not limited. `stop` and the
death of the service end all descendants, but some may outlive a `kill -9` of the server itself.
"""

import asyncio
import os
import shutil
import signal
from contextlib import AsyncExitStack

from prorl_service.errors import TaskError
from prorl_service.sandbox.cache import programs_directory
from prorl_service.sandbox.host import bundle, spec
from prorl_service.sandbox.host.processes import Process
from prorl_service.sandbox.host.provider import ZygoteProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.host.zygotes import Container
from prorl_service.sandbox.images import ImageOptions
from prorl_service.utils import files


class ProcessSandbox(RemoteSandbox):
    """Works in a directory of its own from `start` to `stop`."""

    _workdir: str | None = None

    @property
    def programs(self) -> str:
        return str(programs_directory())

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


def provider(images: ImageOptions, default_image: str | None) -> "ProcessSandboxProvider":
    return ProcessSandboxProvider()


class ProcessSandboxProvider(ZygoteProvider):
    kind = "process"
    sandbox_class = ProcessSandbox

    def __init__(self) -> None:
        super().__init__(user=None)

    def _key(self, image: str | None, user: str | None = None) -> str:
        if image is not None:
            raise TaskError(f"the process sandbox has no images, so {image!r} cannot be used")
        return super()._key(image, user)

    async def _launch(self, key: str, resources: AsyncExitStack) -> Container:
        return Container(bundle.server(spec.ZYGOTE, at=str(bundle.directory())))
