"""Watchdog that measures how late the event loop is, and names what has blocked it.

A handler that calls `time.sleep` or `requests.get` stops every other rollout of the service. A
thread looks at what the loop's thread does while the loop is late; it cannot interrupt that.
"""

import asyncio
import logging
import sys
import sysconfig
import threading
import time
import traceback
from collections import deque
from types import FrameType

from prorl_service import metrics

log = logging.getLogger(__name__)

BEAT_S = 0.25
LOOK_S = 0.5
BLOCKED_S = 1.0
"""Seconds without a beat after which the loop counts as blocked."""

_recent: deque[float] = deque(maxlen=round(60 / BEAT_S))
"""Seconds by which the beats of the last minute were late. The process's, as metrics are."""

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_OURS = __file__.removesuffix("server/watchdog.py")


async def watch_loop() -> None:
    """Runs as long as the service."""
    watchdog = _Watchdog()
    try:
        while True:
            await asyncio.sleep(BEAT_S)
            late_s = watchdog.beat() - BEAT_S
            metrics.LOOP_LAG_S.observe(max(0.0, late_s))
            _recent.append(max(0.0, late_s))
    finally:
        watchdog.stop()


def recent_lag_s() -> float | None:
    """The worst of the last minute; None before the first beat."""
    return max(_recent, default=None)


class _Watchdog:
    """Made in the thread of the loop that it watches."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._last_beat = time.monotonic()
        self._culprit: str | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._look, name="watchdog", daemon=True).start()

    def beat(self) -> float:
        """Notes a beat. Returns the seconds since the last one."""
        now = time.monotonic()
        since_s, self._last_beat = now - self._last_beat, now
        culprit, self._culprit = self._culprit, None
        if culprit is not None and since_s > BLOCKED_S:
            text = "the event loop was blocked for %.1f s by %s; await it or use asyncio.to_thread"
            log.warning(text, since_s, culprit)
        return since_s

    def stop(self) -> None:
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            if self._culprit is None and time.monotonic() > self._last_beat + BLOCKED_S:
                self._culprit = self._find()

    def _find(self) -> str | None:
        """Returns what blocks the loop; None if no task is at work, as the process itself was
        stopped or starved."""
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._watched)
        if task is None or frame is None:
            return None
        return f"{task.get_name()}, at {_place(frame)}"


def _place(frame: FrameType) -> str:
    """Returns file and line of the innermost code of an agent's author, else of the innermost."""
    stack = [(one.filename, one.lineno) for one in reversed(traceback.extract_stack(frame))]
    theirs = (place for place in stack if not place[0].startswith((*_LIBRARIES, _OURS, "<")))
    file, line = next(theirs, stack[0])
    return f"{file}:{line}"
