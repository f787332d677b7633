"""A control group per sandbox, where the service's own group was delegated to it (cgroup v2).

With it the limits of memory, processes and CPU time hold for a sandbox as a whole, and the kernel
ends all its processes at one word. Elsewhere what `runtime` and `execd.memory` do must suffice.
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
"""Between looks whether what was killed is gone: five seconds in all."""

_numbers = count()


class ControlGroup:
    """For one sandbox."""

    def __init__(self, path: Path, limits: SandboxLimits, controllers: frozenset[str]) -> None:
        """Raises `OSError`."""
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
        """Before it has children: those it has already stay where they are."""
        (self._path / "cgroup.procs").write_text(str(pid))

    async def remove(self) -> None:
        """With the processes that are left in it, which the kernel takes a moment to end."""
        with contextlib.suppress(OSError):
            (self._path / "cgroup.kill").write_text("1")
        for pause_s in REMOVE_PAUSES_S:
            if self._try_to_remove():
                break
            await asyncio.sleep(pause_s)

    def _try_to_remove(self) -> bool:
        """False while something in it keeps it."""
        try:
            self._path.rmdir()
        except OSError as error:
            return error.errno != errno.EBUSY
        return True


class Delegation:
    """The part of the hierarchy below the service's own group."""

    def __init__(self, path: Path) -> None:
        """Makes room for groups of sandboxes. Raises `OSError` where that is not allowed."""
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
        """Raises `OSError`."""
        name = f"sandbox-{os.getpid()}-{next(_numbers)}"
        return ControlGroup(self._path / name, limits, self.controllers)


@cache
def delegation() -> Delegation | None:
    """What this process may control; None where that is nothing. Moves it on the first call."""
    try:
        return Delegation(delegated_group())
    except OSError:
        return None


def delegated_group() -> Path:
    """Raises `OSError` where there is none."""
    configured = os.environ.get("PRORL_CGROUP")
    if configured:
        return Path(configured)
    path = _own_group()
    # To an ordinary user it was given if he may write it. Root may write all, and must not move
    # the processes of a session that is not the service's.
    given = os.access(path / "cgroup.procs", os.W_OK) if os.geteuid() else _marked(path)
    if not given:
        raise OSError(errno.EACCES, "the service's control group is not delegated to it", str(path))
    return path


def _marked(path: Path) -> bool:
    """Whether systemd says so (its documentation: Control Group APIs and Delegation)."""
    with contextlib.suppress(OSError):
        return os.getxattr(path, "trusted.delegate") == b"1"
    return False


def _own_group() -> Path:
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
