"""A sandbox that isolates nothing, for tests only: commands run as the service's own user.

They see its files, processes and network, and can harm all of them. Only the limits of memory and
file size per process hold; processes are not counted, the disk is not limited. `stop` and the
death of the service end all descendants, but some may outlive a `kill -9` of the server itself.
"""

import asyncio
import json
import os
import shutil
import signal

from prorl_service import leftovers
from prorl_service.errors import TaskError
from prorl_service.sandbox import portable, runtime
from prorl_service.sandbox.base import SandboxLimits, SandboxProvider
from prorl_service.sandbox.child import Child, Process
from prorl_service.sandbox.served import ServedSandbox


class ProcessSandboxProvider(SandboxProvider):
    kind = "process"

    def create(self, *, image: str | None, limits: SandboxLimits) -> "ProcessSandbox":
        self.check(image)
        return ProcessSandbox(limits)

    def check(self, image: str | None) -> None:
        if image is not None:
            raise TaskError(f"the process sandbox has no images, and {image!r} was asked for")


class ProcessSandbox(ServedSandbox):
    """Works in a directory of its own, `start` to `stop`."""

    _workdir: str | None = None

    async def _spawn(self, connection: int) -> Process:
        self._workdir = str(leftovers.temporary_directory("sandbox"))
        directory = str(portable.directory())
        config = runtime.config(
            self._limits,
            workdir=self._workdir,
            user=None,
            own_processes=False,
            runtime=directory,
        )
        child = Child(
            portable.server(runtime.SERVE, json.dumps(config), at=directory),
            stdin=connection,
            env=runtime.host_environment(home=self._workdir, runtime=directory),
            cwd=self._workdir,
        )
        self.server_pid = child.pid
        return child

    async def _prepare(self) -> None:
        pass

    def _end(self, child: Process) -> None:
        child.signal(signal.SIGTERM)

    async def _clean_up(self) -> None:
        if self._workdir is None:
            return
        try:
            os.rmdir(self._workdir)  # most are left empty: a thread would cost half a turn
        except OSError:
            await asyncio.to_thread(shutil.rmtree, self._workdir, ignore_errors=True)
