"""Leases: a group, sampler or backend that nobody asks for any more is abandoned.

A lease runs while nobody holds it. A request for the thing renews the lease; an open wait or stream
holds it. An ended lease stays ended, whatever is requested or released later. Knows nothing of the
things that are leased.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Lease:
    """Calls `on_expiry` after `seconds` without a holder or a renewal; with None, never."""

    def __init__(self, seconds: float | None, on_expiry: Callable[[], None]) -> None:
        self._seconds = seconds
        self._on_expiry = on_expiry
        self._holders = 0
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        self.renew()

    def renew(self) -> None:
        self._stop()
        if self._seconds is not None and not self._holders and not self._has_ended:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._on_expiry)

    def end(self) -> None:
        """Ends the lease for good: it cannot be renewed."""
        self._has_ended = True
        self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @contextmanager
    def held(self) -> Iterator[None]:
        self._holders += 1
        self._stop()
        try:
            yield
        finally:
            self._holders -= 1
            self.renew()
