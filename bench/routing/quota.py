"""Processes held to a share of one core by stopping and continuing them, as `cpulimit` does.

The shares are of processor time, so a process that had to wait for a core makes up for it.
Containers do the same with cgroups, which need rights that a benchmark should not ask for.
"""

import threading
import time
from signal import SIGCONT, SIGSTOP

from prorl_service.local import LocalProcess

TICK_S = 0.01
SAVED_S = 0.1
"""Seconds whose share a process may save up while it sleeps."""


class Quotas:
    """`with Quotas() as quotas`; afterwards all processes continue unhindered."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quotas", daemon=True)

    def __enter__(self) -> "Quotas":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for held in self._held.values():
            held.process.process.send_signal(SIGCONT)

    def set(self, process: LocalProcess, share: float) -> None:
        with self._lock:
            self._held.setdefault(process.pid, _Held(process)).share = share

    def _run(self) -> None:
        while not self._ended.wait(TICK_S):
            with self._lock:
                self._held = {pid: held for pid, held in self._held.items() if held.tick()}


class _Held:
    def __init__(self, process: LocalProcess) -> None:
        self.process = process
        self.share = 1.0
        self._saved_s = 0.0
        self._is_stopped = False
        self._at = time.monotonic()
        self._used_s = _processor_s(process.pid)

    def tick(self) -> bool:
        """Enforces the share; returns whether the process still runs."""
        try:
            now, used_s = time.monotonic(), _processor_s(self.process.pid)
        except OSError:  # it has ended
            return False
        earned_s = self.share * (now - self._at)
        self._saved_s = min(self.share * SAVED_S, self._saved_s + earned_s)
        self._saved_s -= used_s - self._used_s
        self._at, self._used_s = now, used_s
        if (self._saved_s < 0) != self._is_stopped:
            self._is_stopped = not self._is_stopped
            self.process.process.send_signal(SIGSTOP if self._is_stopped else SIGCONT)
        return True


def _processor_s(pid: int) -> float:
    """Returns CPU seconds of all threads, by the process's clock: see clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)
