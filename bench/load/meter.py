"""Measurements that a contender's process makes of itself. Standard library only, like `workload`.

A contender is started as `python -m bench.load.NAME ENGINE_URL N BATCHES [OPTION]`, runs one
rollout to warm up and then the batches one after the other, and prints one line of JSON.
"""

import asyncio
import json
import os
import resource
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Measured:
    """Figures of all batches together."""

    walls_s: list[float] = field(default_factory=list)
    own_cpu_s: float = 0.0
    """CPU seconds of the contender's process."""
    machine_cpu_s: float = 0.0
    """CPU seconds of all processes of the machine, the stub engine's too, except a client's."""
    peak_rss_mb: float = 0.0
    failures: int = 0


def quantile(values: list[float], share: float) -> float:
    """Returns a quantile; 0 without values."""
    return sorted(values)[round(share * (len(values) - 1))] if values else 0.0


def own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def machine_cpu_s() -> float:
    """Returns CPU seconds since the machine started. A sum of children would miss processes that
    are not waited for."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def peak_rss_mb(process: int | str) -> float:
    """Returns the peak since the program was started; that of `getrusage` includes the parent's."""
    with open(f"/proc/{process}/status") as file:
        (line,) = (line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


Batch = Callable[[int], Awaitable[int]]
"""Function that runs that many rollouts at once and returns the number that failed."""


async def measure(batch: Batch, engine: str, n: int, batches: int) -> None:
    await batch(1)
    await asyncio.to_thread(report, engine)
    measured = Measured()
    own_s, machine_s = own_cpu_s(), machine_cpu_s()
    for _ in range(batches):
        started = time.perf_counter()
        measured.failures += await batch(n)
        measured.walls_s.append(time.perf_counter() - started)
    measured.own_cpu_s = own_cpu_s() - own_s
    measured.machine_cpu_s = machine_cpu_s() - machine_s
    measured.peak_rss_mb = peak_rss_mb("self")
    print(json.dumps(asdict(measured)), flush=True)


def report(engine: str) -> Any:
    """Returns what the engine saw since the last report."""
    with urllib.request.urlopen(f"{engine}/report") as answer:
        return json.load(answer)


def arguments() -> tuple[str, int, int, list[str]]:
    engine, n, batches, *options = sys.argv[1:]
    return engine, int(n), int(batches), options
