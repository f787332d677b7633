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

LAG_INTERVAL_S = 0.02


@dataclass
class Measured:
    """Figures of all batches together. The lags are None without an event loop."""

    walls_s: list[float] = field(default_factory=list)
    own_cpu_s: float = 0.0
    """CPU seconds of the contender's process."""
    machine_cpu_s: float = 0.0
    """CPU seconds of all processes of the machine, the stub engine's too, except a client's."""
    peak_rss_mb: float = 0.0
    lag_p50_ms: float | None = None
    lag_p99_ms: float | None = None
    failures: int = 0


class LagProbe:
    """Measures how late the event loop calls back, every 20 ms between `start` and `stop`."""

    def __init__(self) -> None:
        self._lags_ms: list[float] = []
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._lags_ms.clear()
        self._task = asyncio.create_task(self._sample())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _sample(self) -> None:
        while True:
            asked_at = time.perf_counter()
            await asyncio.sleep(LAG_INTERVAL_S)
            self._lags_ms.append(1e3 * (time.perf_counter() - asked_at - LAG_INTERVAL_S))

    def quantile_ms(self, share: float) -> float:
        return quantile(self._lags_ms, share)


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


async def measure(batch: Batch, engine: str, n: int, batches: int, *, has_loop: bool) -> None:
    await batch(1)
    await asyncio.to_thread(report, engine)
    measured, probe = Measured(), LagProbe()
    if has_loop:
        probe.start()
    own_s, machine_s = own_cpu_s(), machine_cpu_s()
    for _ in range(batches):
        started = time.perf_counter()
        measured.failures += await batch(n)
        measured.walls_s.append(time.perf_counter() - started)
    measured.own_cpu_s = own_cpu_s() - own_s
    measured.machine_cpu_s = machine_cpu_s() - machine_s
    measured.peak_rss_mb = peak_rss_mb("self")
    if has_loop:
        probe.stop()
        measured.lag_p50_ms, measured.lag_p99_ms = probe.quantile_ms(0.5), probe.quantile_ms(0.99)
    print(json.dumps(asdict(measured)), flush=True)


def report(engine: str) -> Any:
    """Returns what the engine saw since the last report."""
    with urllib.request.urlopen(f"{engine}/report") as answer:
        return json.load(answer)


def arguments() -> tuple[str, int, int, list[str]]:
    engine, n, batches, *options = sys.argv[1:]
    return engine, int(n), int(batches), options
