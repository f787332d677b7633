"""A sandbox of Linux namespaces made by `bwrap`: needs no root, no daemon, no image.

Inside are a read-only /usr of the host, a minimal /etc, private /proc and /dev, and three size-
limited file systems in memory: /workspace (home), /tmp and /dev/shm. Nothing else of the host is
there: no files, processes, network, IPC or variables. The user is not root, has no capabilities
and cannot gain any; rare kernel interfaces are filtered (`seccomp`). A service that is root runs
the commands as the host's `nobody`, so that not even an escape is root.

Limits that hold for the whole sandbox: processes (Linux >= 5.14), the sizes of the file systems,
output. For each process only: file size, and memory (`RLIMIT_DATA`: private writable memory, not
what is shared between processes). Not limited: CPU time, the sum of memory over processes, empty
files; when the host runs out of memory, the kernel kills sandboxes first. Those need cgroups.
"""

import json
import os
import shutil
import signal
import subprocess
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox import portable, rootfs, runtime, seccomp
from prorl_service.sandbox.base import SandboxLimits, SandboxProvider
from prorl_service.sandbox.child import Child, Process, readable
from prorl_service.sandbox.served import ServedSandbox

INNER_USER = 1000
OUTER_USER = 65534
"""Who the inner user is on the host, where the service is root and may choose."""

PROBE_TIMEOUT_S = 20.0
INSTALL_HINT = "run scripts/install-sandbox: it installs bubblewrap, or says what is in the way"

ISOLATION = [
    *("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
    *("--unshare-cgroup-try", "--hostname", "sandbox", "--cap-drop", "ALL"),
    # The server is the first process of its PID namespace: nothing inside can signal it, and when
    # it ends the kernel ends everything. It ends with its connection, hence with the service;
    # --die-with-parent would leave a child waiting for ever where bwrap was not done with it.
    "--as-pid-1",
]
AS_ROOT = ["--cap-add", "CAP_CHOWN", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
AS_ORDINARY_USER = ["--uid", str(INNER_USER), "--gid", str(INNER_USER)]


class BubblewrapProvider(SandboxProvider):
    kind = "bubblewrap"

    def __init__(self) -> None:
        """Tries it once. Raises `SandboxError` with what is in the way."""
        self._runtime = portable.directory()
        self._bwrap = _working_bwrap(self._runtime)

    def create(self, *, image: str | None, limits: SandboxLimits) -> "BubblewrapSandbox":
        self.check(image)
        return BubblewrapSandbox(self._bwrap, self._runtime, limits)

    def check(self, image: str | None) -> None:
        if image is not None:
            raise TaskError(
                f"bubblewrap provides the host's own programs, not the image {image!r}",
                hint="submit the task without an image",
            )


class BubblewrapSandbox(ServedSandbox):
    def __init__(self, bwrap: str, runtime_directory: Path, limits: SandboxLimits) -> None:
        super().__init__(limits)
        self._bwrap = bwrap
        self._runtime = runtime_directory
        self._as_root = _may_map_users()
        self._launch_fds = ExitStack()
        self._server: int | None = None
        """A pidfd of the server, which is what must be killed."""

    async def _spawn(self, connection: int) -> Child:
        with ExitStack() as theirs:
            self._info, info = _pipe(self._launch_fds, theirs)
            rules, rules_end = _pipe(theirs, theirs)
            os.write(rules_end, seccomp.program(allow_system_v=False))
            # The reading end too, lest bwrap dies half-way of a service that was killed.
            fds = [self._info, info, rules]
            arguments = ["--info-fd", str(info), "--seccomp", str(rules)]
            if self._as_root:
                mapped, self._mapped = _pipe(theirs, self._launch_fds)
                fds.append(mapped)
                arguments += [*AS_ROOT, "--userns-block-fd", str(mapped)]
            else:
                arguments += AS_ORDINARY_USER
            arguments += [*rootfs.arguments(self._limits, self._runtime), "--", *self._command()]
            return Child(
                [self._bwrap, *ISOLATION, *arguments],
                stdin=connection,
                env=runtime.host_environment(home=rootfs.WORKDIR),
                pass_fds=fds,
            )

    def _command(self) -> list[str]:
        config = runtime.config(
            self._limits,
            workdir=rootfs.WORKDIR,
            user=INNER_USER if self._as_root else None,
            own_processes=True,
        )
        return portable.server(runtime.SERVE, json.dumps(config))

    async def _prepare(self) -> None:
        with self._launch_fds:
            pid = await _read_child_pid(self._info)
            if pid is None:
                raise SandboxError(self._why_lost())
            self.server_pid = pid
            self._server = os.pidfd_open(pid)
            if self._as_root:
                _map_users(pid)
                os.write(self._mapped, b"x")

    def _end(self, child: Process) -> None:
        if self._server is None:
            child.kill()  # nothing of the model's has run yet
        else:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._server, signal.SIGKILL)

    async def _clean_up(self) -> None:
        self._launch_fds.close()
        if self._server is not None:
            os.close(self._server)


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed by their owners."""
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


async def _read_child_pid(info: int) -> int | None:
    """The process that bubblewrap made, once it tells; None when it ended instead."""
    text = b""
    while b"}" not in text:
        await readable(info)
        chunk = os.read(info, 4096)
        if not chunk:
            return None
        text += chunk
    return int(json.loads(text)["child-pid"])


@cache  # asked for with every sandbox
def _may_map_users() -> bool:
    """Root may give the sandbox a user other than its own, unless it is root of little itself."""
    if os.geteuid() != 0:
        return False
    maps = [Path(f"/proc/self/{kind}_map").read_text().split() for kind in ("uid", "gid")]
    return all(_covers(list(map(int, fields)), OUTER_USER) for fields in maps)


def _covers(id_map: list[int], wanted: int) -> bool:
    """Whether lines of (first id here, first id outside, number of ids) contain an id."""
    return any(
        first <= wanted < first + count
        for first, count in zip(id_map[::3], id_map[2::3], strict=True)
    )


def _map_users(pid: int) -> None:
    """Root sets the sandbox up, then becomes `INNER_USER`, which is `OUTER_USER` on the host."""
    for kind in ("uid", "gid"):
        Path(f"/proc/{pid}/{kind}_map").write_text(f"0 0 1\n{INNER_USER} {OUTER_USER} 1\n")


def _working_bwrap(runtime_directory: Path) -> str:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError("bubblewrap is not installed", hint=INSTALL_HINT, retryable=False)
    probe = [
        bwrap,
        *ISOLATION,
        *rootfs.arguments(SandboxLimits(), runtime_directory),
        "--",
        "/usr/bin/true",
    ]
    try:
        done = subprocess.run(
            probe, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False, env={}
        )
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"bubblewrap does not work: {error}", hint=INSTALL_HINT) from error
    if done.returncode:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        raise SandboxError(
            f"bubblewrap does not work: {reason}", hint=INSTALL_HINT, retryable=False
        )
    return bwrap
