"""A sandbox of Linux namespaces made by `bwrap`: needs no root, no daemon, no image.

bwrap starts one container; every sandbox is forked from it (`zygotes`, `execd.namespaces`).
Inside are a read-only /usr of the host, a minimal /etc, private /proc and /dev, and three size-
limited file systems in memory: /workspace (home), /tmp and /dev/shm. Nothing else of the host is
there: no files, processes, network, IPC or variables. The user is not root, has no capabilities
and cannot gain any; rare kernel interfaces are filtered (`seccomp`). A service that is root runs
the commands as the host's `nobody`, so that not even an escape is root.

Limits on the whole sandbox: processes (Linux >= 5.14), the file systems, output. Limits on each
process: file size, and memory (`RLIMIT_DATA`: private writable memory, not what is shared between
processes). `execd.memory` checks the sum of memory at intervals; only cgroups limit it at any time,
and CPU time. When the host runs out of memory, the kernel kills sandboxes first.
"""

import json
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import SandboxLimits, SandboxProvider, refuse_user
from prorl_service.sandbox.host import bundle, rootfs, spec
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.host.zygotes import Zygotes, container_user, try_once

INNER_USER = 1000
INSTALL_HINT = "run `prorl install sandboxes`: it installs bubblewrap, or says what is in the way"

ISOLATION = [
    *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
    *("--unshare-cgroup-try", "--uid", "0", "--gid", "0"),
]
OF_THE_TEMPLATE = [
    # The zygote makes the sandboxes' namespaces and mounts. It is process 1 of its PID namespace,
    # so its end ends everything; it ends with its connection, hence with the service.
    *("--cap-add", "ALL", "--as-pid-1"),
]


class BubblewrapProvider(SandboxProvider):
    kind = "bubblewrap"

    def __init__(self) -> None:
        """Tries bubblewrap once. Raises `SandboxError` with the reason if it does not work."""
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxError("bubblewrap is not installed", hint=INSTALL_HINT, retryable=False)
        self._container = [bwrap, *ISOLATION, *OF_THE_TEMPLATE]
        self._container += rootfs.arguments(bundle.directory())
        namespaces = json.dumps(_namespaces(SandboxLimits()))
        try_once("bubblewrap", self._command(spec.PROBE, namespaces), hint=INSTALL_HINT)
        self._zygotes = Zygotes(self._launch, user=container_user())

    def create(
        self, *, image: str | None, limits: SandboxLimits, user: str | None = None
    ) -> "BubblewrapSandbox":
        self.check(image)
        refuse_user(user)
        return BubblewrapSandbox(self._zygotes, "", limits)

    def check(self, image: str | None) -> None:
        if image is not None:
            raise TaskError(
                f"bubblewrap runs the host's own programs, not the image {image!r}",
                hint="submit the task without an image",
            )

    def prewarm(self, images: Sequence[str | None]) -> None:
        self._zygotes.prewarm("" for _ in images)

    async def close(self) -> None:
        await self._zygotes.close()

    async def _launch(self, _: str, resources: AsyncExitStack) -> list[str]:
        return self._command(spec.ZYGOTE)

    def _command(self, *program: str) -> list[str]:
        return [*self._container, "--", *bundle.server(*program)]


class BubblewrapSandbox(RemoteSandbox):
    def _order(self) -> dict[str, object]:
        environment = spec.host_environment(home=rootfs.WORKDIR)
        return spec.isolated(self._limits, _namespaces(self._limits), environment)


def _namespaces(limits: SandboxLimits) -> dict[str, object]:
    return spec.namespaces(limits, workdir=rootfs.WORKDIR, user=INNER_USER, of_image=False)
