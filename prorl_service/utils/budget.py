"""Budgets that count work only: a clock that stands still while the work waits for others.

The clock of a rollout runs while its agent works and the policy samples. Code that makes a rollout
wait (for a slot at an engine, for new weights, for an engine that is down) stops the clock
meanwhile. Knows nothing of what a rollout waits for.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class WorkClock:
    """Clock that runs while no wait is open. Waits may overlap.

    An agent with concurrent calls is thus not charged while any of them waits.
    """

    def __init__(self) -> None:
        self._waits = 0
        self._turned_at = time.monotonic()
        """Monotonic time of the last change between work and waiting."""
        self._worked_s = 0.0
        self._waited_s = 0.0
        self._deadlines: dict[asyncio.Timeout, float] = {}
        """Open deadlines, and the reading of the clock at which each expires."""
        self._timer: asyncio.TimerHandle | None = None
        """Timer of the next deadline, set as if no wait came before it: a rollout waits at each
        turn, and setting a timer each time would cost more than the rest of the clock."""

    @property
    def worked_s(self) -> float:
        return self._worked_s + (0.0 if self._waits else self._since_turn())

    @property
    def waited_s(self) -> float:
        return self._waited_s + (self._since_turn() if self._waits else 0.0)

    @property
    def is_waiting(self) -> bool:
        return self._waits > 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.start()

    def stop(self) -> None:
        """Begins a wait, which `start` ends."""
        if not self._waits:
            self._turn()
        self._waits += 1

    def start(self) -> None:
        if self._waits == 1:
            self._turn()
        self._waits -= 1
        if not self._waits and self._timer is None:
            self._set_timer()

    def refund(self, since_s: float) -> None:
        """Books as waiting the work since the clock showed `since_s`, lost by another's fault."""
        self._turn()
        lost_s = max(0.0, self._worked_s - since_s)
        self._worked_s -= lost_s
        self._waited_s += lost_s

    @asynccontextmanager
    async def deadline(self, budget_s: float) -> AsyncIterator[asyncio.Timeout]:
        """Cancels the block after `budget_s` of work, and raises `TimeoutError` then."""
        async with asyncio.timeout(None) as timeout:
            self._deadlines[timeout] = self.worked_s + budget_s
            self._set_timer()
            try:
                yield timeout
            finally:
                del self._deadlines[timeout]
                self._set_timer()

    @property
    def left_s(self) -> float:
        """Work left until the next deadline, in seconds; infinite without one."""
        return min(self._deadlines.values(), default=math.inf) - self.worked_s

    def extend(self, seconds: float) -> None:
        """Postpones all open deadlines."""
        for timeout in self._deadlines:
            self._deadlines[timeout] += seconds

    def _since_turn(self) -> float:
        return time.monotonic() - self._turned_at

    def _turn(self) -> None:
        """Books the time since the last turn."""
        now = time.monotonic()
        if self._waits:
            self._waited_s += now - self._turned_at
        else:
            self._worked_s += now - self._turned_at
        self._turned_at = now

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending = [at for timeout, at in self._deadlines.items() if timeout.when() is None]
        next_s = min(pending, default=math.inf)
        if not self._waits and next_s < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(next_s - self.worked_s, self._expire)

    def _expire(self) -> None:
        """Expires the deadlines reached; sets the timer again for those that waits postponed."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        for timeout, at in self._deadlines.items():
            if timeout.when() is None and not self._waits and at <= self.worked_s:
                timeout.reschedule(now)
        self._set_timer()
