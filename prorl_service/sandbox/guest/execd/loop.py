"""The event loop of the execution server: descriptors, timers, and the ends of child processes.

One thread runs everything, so callbacks must not block. As the first process of its PID namespace
the server is the parent of every orphan, so all children are reaped here.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Hashable
from selectors import EVENT_READ, EVENT_WRITE

# `selectors` itself takes a tenth of the time of a short command when many sandboxes are busy.
_EPOLL = {EVENT_READ: select.EPOLLIN, EVENT_WRITE: select.EPOLLOUT}


class Loop:
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._timers: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._exits: dict[int, Callable[[int], None]] = {}
        self._wakeup, wakeup_write = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        self.watch(self._wakeup, self._on_sigchld)

    def watch(self, fd: int, callback: Callable[[], None], events: int = EVENT_READ) -> None:
        self._epoll.register(fd, _EPOLL[events])
        self._watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        """Forgets `fd`, if it is watched."""
        if self._watched.pop(fd, None) is not None:
            with contextlib.suppress(OSError):  # closed already
                self._epoll.unregister(fd)

    def set_timer(self, owner: Hashable, deadline: float, callback: Callable[[], None]) -> None:
        """Calls `callback` once at `deadline` (`time.monotonic`). Replaces the owner's timer."""
        self._timers[owner] = (deadline, callback)

    def clear_timer(self, owner: Hashable) -> None:
        self._timers.pop(owner, None)

    def on_exit(self, pid: int, callback: Callable[[int], None]) -> None:
        """Calls `callback` once with the exit code of `pid`, 128 + signal if a signal killed it."""
        self._exits[pid] = callback

    def run(self) -> None:
        while True:
            timeout_s, first = None, float("inf")
            if self._timers:
                first = min([when for when, _ in self._timers.values()])
                timeout_s = max(0.0, first - time.monotonic())
            watched = self._watched
            ready = [(fd, watched.get(fd)) for fd, _ in self._epoll.poll(timeout_s)]
            for fd, callback in ready:
                # A callback may have unwatched what the same round reports.
                if callback is not None and watched.get(fd) is callback:
                    callback()
            if first <= time.monotonic():
                self._fire_due_timers()

    def _fire_due_timers(self) -> None:
        now = time.monotonic()
        due = [owner for owner, (when, _) in self._timers.items() if when <= now]
        for owner in due:
            # A due timer may have cleared another.
            _, callback = self._timers.pop(owner, (now, None))
            if callback is not None:
                callback()

    def _on_sigchld(self) -> None:
        os.read(self._wakeup, 4096)
        self.reap(os.WNOHANG)

    def reap(self, options: int = 0) -> None:
        """Reaps ended children; without `os.WNOHANG`, waits until no child is left."""
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


class PipeWriter:
    """Writes to a pipe that does not block, what it takes now and the rest later."""

    def __init__(self, loop: Loop, fd: int) -> None:
        self._loop = loop
        self._fd = fd
        self._unwritten = b""

    def write(self, data: bytes) -> None:
        self._unwritten += data
        self._write()

    def _write(self) -> None:
        self._loop.unwatch(self._fd)
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._fd, self._unwritten) :]
        except BlockingIOError:
            self._loop.watch(self._fd, self._write, EVENT_WRITE)
        except BrokenPipeError:  # the reader has ended: `on_exit` does the rest
            self._unwritten = b""


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
