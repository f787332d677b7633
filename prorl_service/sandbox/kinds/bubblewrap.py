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
import os
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.cache import programs_directory
from prorl_service.sandbox.host import bundle, spec
from prorl_service.sandbox.host.provider import ZygoteProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.host.zygotes import Container, container_user, try_once
from prorl_service.sandbox.images import ImageOptions

WORKDIR = "/workspace"
INNER_USER = 1000
HOST_ETC = ("alternatives", "ld.so.cache")
"""Files of the host without which some programs of /usr do not start."""

DIRECTORIES = ("/etc", "/run", "/var", "/tmp", WORKDIR)
"""Directories that are made first: only root could enter those made as parents of a mount."""

INSTALL_HINT = "run `prorl install sandboxes`: it installs bubblewrap, or says what is in the way"

ISOLATION = [
    *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
    *("--unshare-cgroup-try", "--uid", "0", "--gid", "0"),
]
OF_THE_ZYGOTE = [
    # The zygote makes the sandboxes' namespaces and mounts. It is process 1 of its PID namespace,
    # so its end ends everything; it ends with its connection, hence with the service.
    *("--cap-add", "ALL", "--as-pid-1"),
]


class BubblewrapSandbox(RemoteSandbox):
    def _order(self) -> dict[str, object]:
        environment = spec.host_environment(home=WORKDIR)
        return spec.isolated(self._limits, _namespaces(self._limits), environment)


def _namespaces(limits: SandboxLimits) -> dict[str, object]:
    return spec.namespaces(limits, workdir=WORKDIR, user=INNER_USER, of_image=False)


def provider(images: ImageOptions, default_image: str | None) -> "BubblewrapProvider":
    return BubblewrapProvider()


class BubblewrapProvider(ZygoteProvider):
    kind = "bubblewrap"
    sandbox_class = BubblewrapSandbox

    def __init__(self) -> None:
        """Tries bubblewrap once. Raises `SandboxError` with the reason if it does not work."""
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxError("bubblewrap is not installed", hint=INSTALL_HINT, retryable=False)
        self._container = [bwrap, *ISOLATION, *OF_THE_ZYGOTE, *_root(bundle.directory())]
        namespaces = json.dumps(_namespaces(SandboxLimits()))
        try_once("bubblewrap", self._command(spec.PROBE, namespaces), hint=INSTALL_HINT)
        super().__init__(user=container_user())

    async def _launch(self, key: str, resources: AsyncExitStack) -> Container:
        return Container(self._command(spec.ZYGOTE))

    def _command(self, *program: str) -> list[str]:
        return [*self._container, "--", *bundle.server(*program)]


def _root(runtime: Path) -> list[str]:
    """Returns the arguments of `bwrap` for the file system. Nothing in it is writable: each sandbox
    mounts its writable directories over it. The root directory and /dev are in memory, and made
    read-only last."""
    return [
        *_host_programs(),
        *(item for path in DIRECTORIES for item in ("--perms", "0755", "--dir", path)),
        *_etc(runtime),
        *_read_only(runtime, bundle.INSIDE),
        *_read_only(programs_directory(), bundle.PROGRAMS_INSIDE),
        *("--proc", "/proc", "--dev", "/dev", "--symlink", "/tmp", "/var/tmp"),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"),
    ]


def _host_programs() -> list[str]:
    """Binds /usr, and what merged systems link into it and others have as directories."""
    arguments = _read_only("/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            arguments += _read_only(path)
    return arguments


def _etc(runtime: Path) -> list[str]:
    arguments = []
    for path in sorted((runtime / "etc").iterdir()):
        arguments += _read_only(path, f"/etc/{path.name}")
    for name in HOST_ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return arguments


def _read_only(source: Path | str, inside: str | None = None) -> list[str]:
    return ["--ro-bind", str(source), inside or str(source)]
