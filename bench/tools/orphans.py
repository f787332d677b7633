"""Leftovers of many sandboxes, a third of which came to a violent end.

This process adopts every orphan below it (PR_SET_CHILD_SUBREAPER), so that a process that should be
gone cannot hide, and other programs of the machine do not count. Each sandbox leaves a daemon
running inside. Counted after the last stop: processes below this one, mounts here and in the
container, temporary files, sockets and other descriptors, memory. Last, the service itself is
killed: `python -m bench.tools.orphans` is that service.
"""

import asyncio
import ctypes
import gc
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from bench.tools import rungs
from bench.tools.rungs import CONTAINER_USER, Rung
from bench.tools.timing import Effort, Row, complete, row
from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import Sandbox
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider

PART = "orphans"
APPTAINER, BUBBLEWRAP = "ours, apptainer SIF", "ours, bubblewrap"
MEMORY, BLAMED = "MB more in the service", "kills blamed on the image"

# A killed container is replaced, and mounts left in it go with it, so the first half kills none.
FATES = (
    {"stop": 4, "kill server": 1, "cancel start": 1},
    {"stop": 4, "kill server": 0.5, "cancel start": 0.5, "kill container": 1},
)
"""Fates with their weights, in the first and in the second half: a third is not just stopped."""

COMMAND = "setsid sleep 1000 </dev/null >/dev/null 2>&1 & true"
COMMANDS_EACH = 3
AT_ONCE = 4
MAX_DELAY_S = 0.03
"""Longest delay until something happens to a sandbox; its life takes about as long."""

SETTLE_S = 1.0
"""The kernel takes namespaces down after their last process is gone."""

BUBBLEWRAP_SHARE, SERVICE_KILLS_SHARE = 5, 100
"""Number of Apptainer's cycles for each cycle of these."""

VICTIMS, GONE_TIMEOUT_S = 8, 10.0

_PR_SET_CHILD_SUBREAPER = 36


async def measure(effort: Effort) -> list[Row]:
    with _adopted_orphans():
        rows = await _left_by(APPTAINER, effort.cycles)
        rows += await _left_by(BUBBLEWRAP, effort.cycles // BUBBLEWRAP_SHARE)
        rows.append(_service_kills(max(1, effort.cycles // SERVICE_KILLS_SHARE)))
    return rows


@contextmanager
def _adopted_orphans() -> Iterator[None]:
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def blamed(rows: Sequence[Row], who: str) -> float:
    (row,) = (row for row in rows if row["who"] == who and BLAMED in str(row["what"]))
    return float(str(row["count"]))


def count(rows: Sequence[Row], who: str) -> float:
    """Number of all leftovers of any kind, except memory."""
    counts = [
        row["count"]
        for row in rows
        if (row["part"], row["who"]) == (PART, who)
        and not any(other in str(row["what"]) for other in (MEMORY, BLAMED))
    ]
    return sum(max(0.0, float(str(number))) for number in counts)


async def _left_by(who: str, cycles: int) -> list[Row]:
    await _live_through(who, AT_ONCE)  # what is made only once exists from here on
    before = await _state()
    growth = await _live_through(who, cycles)
    after = await _state()
    left = {name: after[name] - before[name] for name in after} | growth
    what = f"after {cycles} cycles: "
    return [
        complete(part=PART, who=who, what=what + name, n=cycles, count=round(number, 1))
        for name, number in left.items()
    ]


async def _live_through(who: str, cycles: int) -> dict[str, float]:
    """Runs the whole life of a provider. Returns what grew in its container, and wrong blame."""
    async with AsyncExitStack() as stack:
        rung = await _rung(who, stack)
        before = await _container_mounts(rung)
        wrong = await _cycles(rung, cycles // 2, FATES[0])
        grown = await _container_mounts(rung) - before
        wrong += await _cycles(rung, cycles - cycles // 2, FATES[1])
    return {"mounts in the container": grown, BLAMED: wrong}


async def _rung(who: str, stack: AsyncExitStack) -> Rung:
    if who == BUBBLEWRAP:
        return Rung(who, await stack.enter_async_context(BubblewrapProvider()))
    provider = await stack.enter_async_context(rungs.apptainer())
    return Rung(who, provider, str(rungs.sif()))


async def _container_mounts(rung: Rung) -> int:
    async with rungs.running(rung) as sandbox:
        assert isinstance(sandbox, RemoteSandbox)
        parent = psutil.Process(sandbox.server_pid).ppid()
        return _mounts(parent)


def _mounts(pid: int) -> int:
    return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())


async def _cycles(rung: Rung, cycles: int, fates: Mapping[str, float]) -> int:
    """Returns how many kills were taken for a fault of the image."""
    rng = random.Random(cycles)
    left = iter(rng.choices(list(fates), list(fates.values()), k=cycles))

    async def worker() -> int:
        return sum([await _cycle(rung, fate, rng) for fate in left])

    return sum(await asyncio.gather(*(worker() for _ in range(AT_ONCE))))


async def _cycle(rung: Rung, fate: str, rng: random.Random) -> bool:
    """Returns whether the image was blamed, which is always intact."""
    sandbox = rung.new()
    life = asyncio.create_task(_live(sandbox))
    if fate != "stop":
        await asyncio.sleep(rng.uniform(0, MAX_DELAY_S))
        if fate == "cancel start":
            life.cancel()
        else:
            _kill(sandbox, fate, rng)
    blamed = False
    try:
        await life
    except TaskError:
        blamed = True
    except (SandboxError, asyncio.CancelledError):
        pass
    finally:
        await sandbox.stop()
    return blamed


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
        "processes": len(_living()),
        "mounts": _mounts(me.pid),
        "temporary files": len(_temporary_files()),
        "sockets": len(_own_sockets()),
        "descriptors": me.num_fds(),
        MEMORY: me.memory_info().rss / 2**20,
    }


def _living() -> list[psutil.Process]:
    """Returns the processes below this one, after it has reaped adopted ones that ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    children: list[psutil.Process] = psutil.Process().children(recursive=True)
    return children


def _temporary_files() -> list[Path]:
    """Returns the files that the service or its containers may have made."""
    found = []
    for directory in {tempfile.gettempdir(), "/tmp", "/dev/shm"}:
        for path in Path(directory).iterdir():
            with suppress(FileNotFoundError):
                owner = path.lstat().st_uid
                if path.name.startswith("prorl-") or owner == CONTAINER_USER:
                    found.append(path)
    return found


def _own_sockets() -> list[str]:
    links = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            links.append(os.readlink(fd))
    return [link for link in links if link.startswith("socket:")]


def _service_kills(times: int) -> Row:
    gone_ms, left = [], 0
    for _ in range(times):
        before = set(_living())
        argv = [sys.executable, "-m", "bench.tools.orphans"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as service:
            assert service.stdout
            service.stdout.readline()
            service.kill()
        started = time.perf_counter()
        while set(_living()) - before and time.perf_counter() < started + GONE_TIMEOUT_S:
            time.sleep(0.001)
        gone_ms.append(1e3 * (time.perf_counter() - started))
        left += len(set(_living()) - before)
    what = f"service killed with {2 * VICTIMS} sandboxes: processes"
    return row(PART, "ours, both", what, gone_ms, count=left)


async def _be_killed() -> None:
    kept = []
    async with AsyncExitStack() as stack:
        for who in (APPTAINER, BUBBLEWRAP):
            rung = await _rung(who, stack)
            for _ in range(VICTIMS):
                await _live(sandbox := rung.new())
                kept.append(sandbox)
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_be_killed())
