"""Keeps the memory of all processes together below a limit, where the kernel does not.

Limits on each process (`confine`) do not bound their sum. This adds it up from the first command
on, more often near the limit, and kills the largest process while the sum is too large; allocations
in between overshoot. It works in process 1 of a PID namespace, which sees all others.
"""

import contextlib
import os
import signal
import time

from .loop import Loop

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.05, 1.0
GROWTH_BYTES_PER_S = 4 << 30
"""Assumed growth of the memory of programs, which decides how soon to check again."""

HELD = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")
"""Fields for private, shared and swapped memory, without files, and for page tables."""


class MemoryGuard:
    def __init__(self, loop: Loop, limit_bytes: int | None) -> None:
        """Makes a guard, which does nothing without a limit."""
        self._loop = loop
        self._limit_bytes = limit_bytes
        self._watching = False

    def watch(self) -> None:
        """Starts to check, forever: a single shell may start anything at any time."""
        if self._limit_bytes is not None and not self._watching:
            self._watching = True
            self._check()

    def _check(self) -> None:
        assert self._limit_bytes is not None
        sizes = held_bytes()
        while sum(sizes.values()) > self._limit_bytes:
            largest = max(sizes, key=sizes.__getitem__)
            del sizes[largest]
            with contextlib.suppress(ProcessLookupError):
                os.kill(largest, signal.SIGKILL)
        room_s = (self._limit_bytes - sum(sizes.values())) / GROWTH_BYTES_PER_S
        interval_s = min(max(room_s, MIN_INTERVAL_S), MAX_INTERVAL_S)
        self._loop.set_timer(self, time.monotonic() + interval_s, self._check)


def held_bytes() -> dict[int, int]:
    """Returns the bytes that each process holds, by its id, except this one."""
    own = os.getpid()
    sizes = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != own:
            with contextlib.suppress(OSError):
                sizes[int(name)] = _held_bytes(name)
    return sizes


def _held_bytes(pid: str) -> int:
    with open(f"/proc/{pid}/status", "rb") as file:
        status = file.read()
    return sum(_kilobytes(status, field) << 10 for field in HELD)


def _kilobytes(status: bytes, field: bytes) -> int:
    start = status.find(field)
    return int(status[start + len(field) :].split(None, 1)[0]) if start >= 0 else 0
