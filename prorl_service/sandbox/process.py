"""A sandbox that isolates nothing, for tests only: commands run as the service's own user.

They see its files, processes and network, and can harm all of them. Only the limits of memory and
file size per process hold; processes are not counted, the disk is not limited. `stop` and the
death of the service end all descendants, but some may outlive a `kill -9` of the server itself.
"""

import asyncio
import shutil
import signal
import tempfile

from prorl_service.errors import TaskError
from prorl_service.sandbox import runtime
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.child import Child
from prorl_service.sandbox.served import ServedSandbox


class ProcessSandboxProvider:
    kind = "process"

    def create(self, *, image: str | None, limits: SandboxLimits) -> "ProcessSandbox":
        if image is not None:
            raise TaskError(f"the process sandbox has no images, and {image!r} was asked for")
        return ProcessSandbox(limits)


class ProcessSandbox(ServedSandbox):
    """Works in a directory of its own, `start` to `stop`."""

    _workdir: str | None = None

    def _spawn(self, connection: int) -> Child:
        self._workdir = tempfile.mkdtemp(prefix="prorl-sandbox-")
        prefix = str(runtime.PYTHON_PREFIX)
        config = runtime.config(
            self._limits, workdir=self._workdir, user=None, count_processes=False
        )
        source_directories = [str(runtime.EXECD.parent), str(runtime.PTYPROCESS.parent)]
        child = Child(
            runtime.command(f"{prefix}/bin/{runtime.PYTHON_NAME}", source_directories, config),
            stdin=connection,
            env=runtime.environment(home=self._workdir, python_prefix=prefix),
            cwd=self._workdir,
        )
        self.server_pid = child.pid
        return child

    async def _prepare(self) -> None:
        pass

    def _end(self, child: Child) -> None:
        child.signal(signal.SIGTERM)

    async def _clean_up(self) -> None:
        if self._workdir is not None:
            await asyncio.to_thread(shutil.rmtree, self._workdir, ignore_errors=True)
