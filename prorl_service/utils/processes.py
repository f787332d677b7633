"""Identity of this machine's processes: id and start time, never reused before the next boot.

Reads /proc, so Linux only.
"""

import os
from functools import cache
from pathlib import Path


def start_time(pid: int) -> str | None:
    """Returns the clock ticks from boot to the start of a process, zombies included; None if there
    is no such process."""
    try:
        return start_in_stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def start_in_stat(stat: str) -> str:
    """Returns field 22 of /proc/PID/stat; the second is in brackets and may hold anything."""
    return stat.rpartition(")")[2].split()[19]


def is_running(pid: int, started: str) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    has_ended = stat.rpartition(")")[2].split()[0] in "ZX"
    return start_in_stat(stat) == started and not has_ended


@cache
def pid_scope() -> str:
    """Returns boot id and PID namespace: where equal process ids mean the same process."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
