"""Limits that the execution server puts on itself before it starts anything, and its exit."""

import contextlib
import os
import resource
import signal

from . import linux

NICENESS = 5
"""Niceness of a sandbox: a service with a hundred of them must not wait behind them."""


def be_killed_first() -> None:
    """Marks this process as the first to be killed when memory runs out.

    `namespaces.enter` makes that final for its descendants.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def confine(*, workdir: str, rlimits: dict[str, int]) -> None:
    """Changes to `workdir`, and sets the limits."""
    os.chdir(workdir)
    os.nice(NICENESS)
    with contextlib.suppress(PermissionError):
        # Waking up interrupts no other sandbox: a fifth more calls when many are busy.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    for name, limit in rlimits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (allowed, allowed))
    linux.prctl(linux.PR_SET_DUMPABLE, 0)  # no process may trace it
    if os.getpid() != 1:
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)  # orphans stay in sight
        signal.signal(signal.SIGTERM, lambda *_: kill_all_and_exit())


def kill_all_and_exit() -> None:
    """Ends every process of this sandbox, this one last. The kernel does so for a PID namespace."""
    if os.getpid() != 1:
        signal.set_wakeup_fd(-1)
        _kill_descendants()
    os._exit(0)


def _kill_descendants() -> None:
    """Kills children until all are gone: a killed one's children become this process's own."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = file.read().split()
        for pid in children:
            os.kill(int(pid), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return
