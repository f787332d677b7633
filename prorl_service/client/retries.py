"""Retries of failed calls, and the rollouts of a broken stream that are still to come.

Does no I/O and knows no event loop.
"""

import logging
import random
import time
from collections.abc import Iterable, Iterator

import httpx

from prorl_service.client.errors import ServiceCallError, WaitTimeout
from prorl_service.client.requests import Request, stream
from prorl_service.schemas import Rollout

FIRST_DELAY_S, LAST_DELAY_S = 0.1, 5.0
FIRST_WARNING_S, NEXT_WARNING_S = 10.0, 60.0
"""Seconds of failure before a retried call is logged, and between later log lines."""

logger = logging.getLogger(__name__)


class Backoff:
    """Delays between tries, until `budget_s` has passed since the first of consecutive failures."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self.progress()

    def progress(self) -> None:
        self._delay_s = FIRST_DELAY_S
        self._failing_since: float | None = None

    def delay_s(self, error: ServiceCallError) -> float:
        """Returns the seconds until the next try. Raises `error` if there is to be none."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since, self._warn_at = now, now + FIRST_WARNING_S
        left_s = self._failing_since + self._budget_s - now
        if not error.retryable or self._delay_s > left_s:
            raise error
        if now >= self._warn_at:
            self._warn_at = now + NEXT_WARNING_S
            problem, failing_s = str(error).partition("\n")[0], now - self._failing_since
            logger.warning("no success for %.0f s, %.0f s left: %s", failing_s, left_s, problem)
        delay_s = self._delay_s * random.uniform(0.5, 1)
        self._delay_s = min(2 * self._delay_s, LAST_DELAY_S)
        return delay_s


class Reception:
    """Pending rollouts of one stream, received over as many connections as it takes."""

    def __init__(
        self, rollout_ids: Iterable[str], timeout_s: float, retry_s: float, idle_s: float
    ) -> None:
        self.pending = dict.fromkeys(rollout_ids)
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._deadline = time.monotonic() + timeout_s
        self._backoff = Backoff(retry_s)
        self._partial_line = b""

    def request(self) -> Request[Rollout]:
        self._partial_line = b""
        return stream(self.pending, min(self._idle_s, self._seconds_left()))

    def feed(self, chunk: bytes) -> Iterator[Rollout]:
        """Yields the rollouts in `chunk`. Only newline bytes end lines: JSON text may hold other
        characters at which `str.splitlines` splits."""
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        for line in filter(bytes.strip, lines):
            rollout = Rollout.model_validate_json(line)
            if rollout.rollout_id in self.pending:
                del self.pending[rollout.rollout_id]
                yield rollout
        self._backoff.progress()
        if self.pending:
            self._seconds_left()

    def closed(self) -> None:
        if self.pending:
            missing = f"the stream ended with {len(self.pending)} rollouts still to come"
            raise httpx.RemoteProtocolError(missing)

    def delay_s(self, error: ServiceCallError) -> float:
        left_s = self._seconds_left()
        return min(self._backoff.delay_s(error), left_s)

    def _seconds_left(self) -> float:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise WaitTimeout(list(self.pending), self._timeout_s)
        return left_s
