"""The event loop of the execution server: descriptors, timers, and the ends of child processes.

One thread runs everything, so callbacks must not block. As the first process of its PID namespace
the server is the parent of every orphan, so all children are reaped here.
"""

from __future__ import annotations

import os
import selectors
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._exits: dict[int, Callable[[int], None]] = {}
        self._wakeup, wakeup_write = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        self.watch(self._wakeup, self._on_sigchld)

    def watch(
        self, fd: int, callback: Callable[[], None], events: int = selectors.EVENT_READ
    ) -> None:
        self._selector.register(fd, events, callback)

    def unwatch(self, fd: int) -> None:
        """Forget `fd`, if it is watched."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def set_timer(self, owner: Hashable, deadline: float, callback: Callable[[], None]) -> None:
        """Call once at `deadline` (of `time.monotonic`). An owner has one timer: the last set."""
        self._timers[owner] = (deadline, callback)

    def clear_timer(self, owner: Hashable) -> None:
        self._timers.pop(owner, None)

    def on_exit(self, pid: int, callback: Callable[[int], None]) -> None:
        """Call once with the exit code of the child `pid`, 128 + signal where one killed it."""
        self._exits[pid] = callback

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select(self._until_next_timer_s()):
                # A callback may have unwatched what the same round reports.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            self._fire_due_timers()

    def _until_next_timer_s(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, min(when for when, _ in self._timers.values()) - time.monotonic())

    def _fire_due_timers(self) -> None:
        now = time.monotonic()
        due = [owner for owner, (when, _) in self._timers.items() if when <= now]
        for owner in due:
            _, callback = self._timers.pop(owner)
            callback()

    def _on_sigchld(self) -> None:
        os.read(self._wakeup, 4096)
        self.reap(os.WNOHANG)

    def reap(self, options: int = 0) -> None:
        """Take note of ended children; without `os.WNOHANG`, wait until no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return
            if not pid:
                return
            callback = self._exits.pop(pid, None)
            if callback:
                callback(_exit_code(status))


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
