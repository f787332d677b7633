"""Leftovers of many Apptainer sandboxes, a third of which came to a violent end.

This process adopts every orphan below it (PR_SET_CHILD_SUBREAPER), so that a process that should be
gone cannot hide, and other programs of the machine do not count. Each sandbox leaves a daemon
running inside. Counted after the last stop: processes below this one, mounts here and in the
container, temporary files, sockets and other descriptors, memory.
"""

import asyncio
import ctypes
import gc
import os
import random
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from bench.frame import Found
from bench.tools import rungs
from bench.tools.rungs import CONTAINER_USER, Rung
from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import Sandbox
from prorl_service.sandbox.host.sandbox import RemoteSandbox

MEMORY = "MB more in the service"
# A killed container is replaced, and mounts left in it go with it, so the first half kills none.
FATES = (
    {"stop": 4, "kill server": 1, "cancel start": 1},
    {"stop": 4, "kill server": 0.5, "cancel start": 0.5, "kill container": 1},
)
"""Fates with their weights, in the first and in the second half: a third is not just stopped."""
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
        mounts = await _live_through(cycles)
        after = await _state()
    left = {name: after[name] - before[name] for name in after}
    left["mounts in the container"] = mounts
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


async def _live_through(cycles: int) -> int:
    """Runs the whole life of a provider. Returns how many mounts its container has more."""
    async with rungs.apptainer() as provider:
        rung = Rung(rungs.SIF, provider, str(rungs.sif()))
        before = await _container_mounts(rung)
        await _cycles(rung, cycles // 2, FATES[0])
        grown = await _container_mounts(rung) - before
        await _cycles(rung, cycles - cycles // 2, FATES[1])
    return grown


async def _container_mounts(rung: Rung) -> int:
    async with rungs.running(rung) as sandbox:
        assert isinstance(sandbox, RemoteSandbox)
        return _mounts(psutil.Process(sandbox.server_pid).ppid())


def _mounts(pid: int) -> int:
    return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())


async def _cycles(rung: Rung, cycles: int, fates: Mapping[str, float]) -> None:
    rng = random.Random(cycles)
    left = iter(rng.choices(list(fates), list(fates.values()), k=cycles))

    async def worker() -> None:
        for fate in left:
            await _cycle(rung, fate, rng)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


async def _cycle(rung: Rung, fate: str, rng: random.Random) -> None:
    sandbox = rung.new()
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


async def _live(sandbox: Sandbox) -> None:
    await sandbox.start()
    for _ in range(COMMANDS_EACH):
        await sandbox.call_tool("bash", {"command": COMMAND}, timeout_s=rungs.TIMEOUT_S)


def _kill(sandbox: Sandbox, fate: str, rng: random.Random) -> None:
    """Kills the sandbox's server, or any process between it and this one; none before it starts."""
    assert isinstance(sandbox, RemoteSandbox)
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
        "mounts": _mounts(me.pid),
        "temporary files": _temporary_files(),
        "sockets": _own_sockets(),
        "descriptors": me.num_fds(),
        MEMORY: me.memory_info().rss / 2**20,
    }


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


def _own_sockets() -> int:
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(fd))
    return sum(link.startswith("socket:") for link in links)
