"""Leftovers of many Apptainer sandboxes, a third of which came to a violent end.

This process adopts every orphan below it (PR_SET_CHILD_SUBREAPER), so that a process that should be
gone cannot hide, and other programs of the machine do not count. Each sandbox leaves a daemon
running inside. Counted after the last stop: processes below this one, mounts, temporary files,
sockets and other descriptors, memory.
"""

import asyncio
import ctypes
import gc
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from bench.frame import Found
from bench.tools import rungs
from bench.tools.apptainer import CONTAINER_USER
from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.sandboxes import new_provider, new_sandbox

MEMORY = "MB more in the service"
FATES = {"stop": 4, "kill server": 0.75, "cancel start": 0.75, "kill container": 0.5}
"""Fates with their weights: a third is not just stopped."""
CYCLES, QUICK_CYCLES = 1000, 60
COMMAND = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & true"
COMMANDS_EACH, AT_ONCE = 3, 4
MAX_DELAY_S = 0.03
"""Longest delay until something happens to a sandbox; its life takes about as long."""
SETTLE_S = 1.0
"""The kernel takes namespaces down after their last process is gone."""
_PR_SET_CHILD_SUBREAPER = 36


async def measure(quick: bool) -> Found:
    cycles = QUICK_CYCLES if quick else CYCLES
    with _adopted_orphans():
        await _live_through(AT_ONCE)  # what is made only once exists from here on
        before = await _state()
        await _live_through(cycles)
        after = await _state()
    left = {name: after[name] - before[name] for name in after}
    rows = [
        {"who": rungs.SIF, "what": f"after {cycles} cycles: {name}", "count": round(number, 1)}
        for name, number in left.items()
    ]
    orphans = sum(max(0.0, number) for name, number in left.items() if name != MEMORY)
    return Found(rows, {"orphans_after_1000_cycles": orphans})


@contextmanager
def _adopted_orphans() -> Iterator[None]:
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


async def _live_through(cycles: int) -> None:
    """Runs the whole life of a provider."""
    rng = random.Random(cycles)
    fates = iter(rng.choices([*FATES], [*FATES.values()], k=cycles))
    async with new_provider("apptainer") as provider:

        async def worker() -> None:
            for fate in fates:
                await _cycle(provider, fate, rng)

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def _cycle(provider: SandboxProvider, fate: str, rng: random.Random) -> None:
    sandbox = new_sandbox(provider, rungs.LIMITS)
    life = asyncio.create_task(_live(sandbox))
    if fate != "stop":
        await asyncio.sleep(rng.uniform(0, MAX_DELAY_S))
        if fate == "cancel start":
            life.cancel()
        else:
            _kill(sandbox, fate, rng)
    try:
        with suppress(SandboxError, TaskError, asyncio.CancelledError):
            await life
    finally:
        await sandbox.stop()


async def _live(sandbox: RemoteSandbox) -> None:
    await sandbox.start()
    for _ in range(COMMANDS_EACH):
        await sandbox.call_tool("bash", {"command": COMMAND}, timeout_s=rungs.TIMEOUT_S)


def _kill(sandbox: RemoteSandbox, fate: str, rng: random.Random) -> None:
    """Kills the sandbox's server, or any process between it and this one; none before it starts."""
    with suppress(psutil.NoSuchProcess, OSError, ValueError):
        if sandbox.server_pid is not None:
            server = psutil.Process(sandbox.server_pid)
            above = server.parents()
            between = above[: above.index(psutil.Process())]
            victim = server if fate == "kill server" else rng.choice(between)
            victim.kill()


async def _state() -> dict[str, float]:
    gc.collect()
    await asyncio.sleep(SETTLE_S)
    me = psutil.Process()
    return {
        "processes": _living(),
        "mounts": _mounts(),
        "temporary files": _temporary_files(),
        "descriptors": me.num_fds(),
        MEMORY: me.memory_info().rss / 2**20,
    }


def _mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text().splitlines())


def _living() -> int:
    """Counts the processes below this one, after it has reaped adopted ones that ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return len(psutil.Process().children(recursive=True))


def _temporary_files() -> int:
    """Counts the files that the service or its containers may have made."""
    found = 0
    for directory in {tempfile.gettempdir(), "/tmp", "/dev/shm"}:
        for path in Path(directory).iterdir():
            with suppress(FileNotFoundError):
                owner = path.lstat().st_uid
                found += path.name.startswith("prorl-") or owner == CONTAINER_USER
    return found
