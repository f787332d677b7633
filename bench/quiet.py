"""Whether a run had the machine to itself. One that had not is invalid, and not a result."""

import os
import time
from dataclasses import dataclass

import psutil

from bench.load.meter import machine_cpu_s

MOST_SHARE = 0.7
"""Largest share of all cores that all processes together may use."""
MOST_OTHERS = 1.0
"""Most cores that other processes than the run's may use."""


@dataclass(frozen=True, slots=True)
class Quiet:
    cpu_share: float
    """Share of all cores that all processes of the machine used."""
    other_load: float
    """Cores that other processes used."""

    @property
    def problem(self) -> str:
        """Reason why the run is invalid; empty if it is valid."""
        if self.cpu_share > MOST_SHARE:
            return f"processes used {self.cpu_share:.0%} of the cores"
        if self.other_load > MOST_OTHERS:
            return f"other processes used {self.other_load:.1f} cores"
        return ""


class Watch:
    """Measures from its beginning until `quiet` is called."""

    def __init__(self) -> None:
        self._at, self._all_s, self._own_s = time.monotonic(), machine_cpu_s(), _own_s()

    def quiet(self) -> Quiet:
        wall_s = time.monotonic() - self._at
        all_s, own_s = machine_cpu_s() - self._all_s, _own_s() - self._own_s
        cores = os.cpu_count() or 1
        return Quiet(all_s / wall_s / cores, max(0.0, all_s - own_s) / wall_s)


def _own_s() -> float:
    """Returns CPU seconds of this process and all below it; of those that ended, too, once their
    parent has noticed."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:  # its parent has its time
            continue
    return total
