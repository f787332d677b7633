"""A control group per sandbox, if the service's own group was delegated to it (cgroup v2).

It limits memory, processes and CPU time of a sandbox as a whole, and the kernel ends all its
processes on one command. Without it, `execd.limits` and `execd.memory` must suffice.
`systemd-run --user --scope -p Delegate=yes prorl serve` delegates one; $PRORL_CGROUP names one that
was delegated otherwise.
"""

import asyncio
import contextlib
import errno
import os
from functools import cache
from itertools import count
from pathlib import Path

from prorl_service.sandbox.base import SandboxLimits

WANTED = ("memory", "pids", "cpu")
CPU_PERIOD_US = 100_000

REMOVE_PAUSES_S = [0.01 * 2**number for number in range(9)]
"""Pauses between checks that killed processes are gone: five seconds in all."""

_numbers = count()


class ControlGroup:
    """The control group of one sandbox."""

    def __init__(self, path: Path, limits: SandboxLimits, controllers: frozenset[str]) -> None:
        """Makes the group. Raises `OSError`."""
        self._path = path
        path.mkdir()
        try:
            for name, value in _settings(limits, controllers).items():
                with contextlib.suppress(FileNotFoundError):  # a kernel without swap accounting
                    (path / name).write_text(value)
        except OSError:
            path.rmdir()
            raise

    def add(self, pid: int) -> None:
        """Adds a process. Call it before the process has children, which would stay outside."""
        (self._path / "cgroup.procs").write_text(str(pid))

    async def remove(self) -> None:
        """Kills the processes left in it, which takes a moment, and removes the group."""
        with contextlib.suppress(OSError):
            (self._path / "cgroup.kill").write_text("1")
        for pause_s in REMOVE_PAUSES_S:
            if self._try_to_remove():
                break
            await asyncio.sleep(pause_s)

    def _try_to_remove(self) -> bool:
        """Returns False while processes in it keep it busy."""
        try:
            self._path.rmdir()
        except OSError as error:
            return error.errno != errno.EBUSY
        return True


class Delegation:
    """The part of the hierarchy below the service's own group."""

    def __init__(self, path: Path) -> None:
        """Makes room for groups of sandboxes. Raises `OSError` if that is not allowed."""
        self._path = path
        self.controllers = frozenset((path / "cgroup.controllers").read_text().split()) & {*WANTED}
        if not self.controllers:
            raise OSError(errno.ENOTSUP, "no controller is delegated", str(path))
        # A group with processes of its own cannot control its children.
        own = path / f"service-{os.getpid()}"
        own.mkdir(exist_ok=True)
        for pid in (path / "cgroup.procs").read_text().split():
            (own / "cgroup.procs").write_text(pid)
        enable = " ".join(f"+{name}" for name in sorted(self.controllers))
        (path / "cgroup.subtree_control").write_text(enable)

    def group(self, limits: SandboxLimits) -> ControlGroup:
        """Makes the group of a new sandbox. Raises `OSError`."""
        name = f"sandbox-{os.getpid()}-{next(_numbers)}"
        return ControlGroup(self._path / name, limits, self.controllers)


@cache
def delegation() -> Delegation | None:
    """Returns what this process may control, or None. The first call moves it to a subgroup."""
    try:
        return Delegation(delegated_group())
    except OSError:
        return None


def delegated_group() -> Path:
    """Returns the delegated group. Raises `OSError` if there is no such group."""
    configured = os.environ.get("PRORL_CGROUP")
    if configured:
        return Path(configured)
    path = own_group()
    # An ordinary user may write only to a delegated group. Root may write to any, and must not move
    # the processes of a session that is not the service's.
    given = os.access(path / "cgroup.procs", os.W_OK) if os.geteuid() else _marked(path)
    if not given:
        raise OSError(errno.EACCES, "the service's control group is not delegated to it", str(path))
    return path


def _marked(path: Path) -> bool:
    """Returns whether systemd delegated the group (see its Control Group APIs and Delegation)."""
    with contextlib.suppress(OSError):
        return os.getxattr(path, "trusted.delegate") == b"1"
    return False


def own_group() -> Path:
    """Returns the control group of this process. Raises `OSError` without cgroup v2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, _, path = line.split(":", 2)
        if number == "0":
            return _mount_point() / path.lstrip("/")
    raise OSError(errno.ENOTSUP, "there is no cgroup v2")


def _mount_point() -> Path:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, path, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(path)
    raise OSError(errno.ENOTSUP, "cgroup v2 is not mounted")


def _settings(limits: SandboxLimits, controllers: frozenset[str]) -> dict[str, str]:
    settings = {
        "memory.max": str(limits.memory_mb << 20),
        "memory.swap.max": "0",
        "pids.max": str(limits.processes),
        "cpu.max": f"{int(limits.cpus * CPU_PERIOD_US)} {CPU_PERIOD_US}",
    }
    return {name: value for name, value in settings.items() if name.split(".")[0] in controllers}
