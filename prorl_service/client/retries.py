"""Retries of failed calls, and the rollouts of a broken stream that are still to come.

Does no I/O and knows no event loop.
"""

import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import httpx

from prorl_service.client.errors import ServiceCallError, WaitTimeout
from prorl_service.client.requests import Request, stream
from prorl_service.schemas import Rollout, StreamForm, content_start

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


Received = TypeVar("Received")


class Reception(ABC, Generic[Received]):
    """Pending rollouts of one stream, received over as many connections as it takes."""

    form: StreamForm

    def __init__(
        self, rollout_ids: Iterable[str], timeout_s: float, retry_s: float, idle_s: float
    ) -> None:
        self.pending = dict.fromkeys(rollout_ids)
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._deadline = time.monotonic() + timeout_s
        self._backoff = Backoff(retry_s)
        self._partial_line: list[bytes] = []

    def request(self) -> Request[Rollout]:
        self._partial_line = []
        return stream(self.pending, min(self._idle_s, self._seconds_left()), self.form)

    def feed(self, chunk: bytes) -> Iterator[Received]:
        """Yields the rollouts that `chunk` completes."""
        for line in self._lines(chunk):
            yield from self._read(line)
        self._backoff.progress()
        if self.pending:
            self._seconds_left()

    @abstractmethod
    def _read(self, line: bytes) -> Iterator[Received]:
        """Yields the rollout that `line` completes, if it is pending."""

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        """Yields whole lines. Only newline bytes end them: JSON text may hold other characters at
        which `str.splitlines` splits."""
        if b"\n" in chunk:
            *lines, chunk = b"".join((*self._partial_line, chunk)).split(b"\n")
            self._partial_line = []
            yield from filter(bytes.strip, lines)
        self._partial_line.append(chunk)

    def _is_new(self, rollout: Rollout) -> bool:
        if rollout.rollout_id not in self.pending:
            return False
        del self.pending[rollout.rollout_id]
        return True

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


class WholeReception(Reception[Rollout]):
    form = StreamForm.WHOLE

    def _read(self, line: bytes) -> Iterator[Rollout]:
        rollout = Rollout.model_validate_json(line)
        if self._is_new(rollout):
            yield rollout


class SummaryReception(WholeReception):
    form = StreamForm.SUMMARY


class PartsReception(Reception[tuple[Rollout, bytes]]):
    """Summaries of rollouts, each with its content, which stays packed JSON."""

    form = StreamForm.PARTS
    _summary: Rollout | None = None

    def request(self) -> Request[Rollout]:
        self._summary = None
        return super().request()

    def _read(self, line: bytes) -> Iterator[tuple[Rollout, bytes]]:
        if self._summary is None:
            self._summary = Rollout.model_validate_json(line)
            return
        summary, self._summary = self._summary, None
        if not (line.startswith(content_start(summary.result_id)) and line.endswith(b"}")):
            raise httpx.RemoteProtocolError(
                f"what follows {summary.rollout_id} is not the content of its result"
            )
        if self._is_new(summary):
            yield summary, line
