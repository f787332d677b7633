"""Requests as data, delays between their tries, and what is still to come of a broken stream.

Does no I/O and knows no event loop: `calls` sends, receives and waits.
"""

import json
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx
from pydantic import BaseModel

from prorl_service.client.errors import ServiceCallError, WaitTimeout
from prorl_service.schemas import Rollout, StreamForm, StreamRequest, content_start
from prorl_service.schemas.views import Event

FIRST_DELAY_S, LAST_DELAY_S = 0.1, 5.0
FIRST_WARNING_S, NEXT_WARNING_S = 10.0, 60.0
"""Seconds of failure before a retried call is logged, and between later log lines."""

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Received = TypeVar("Received")


@dataclass(frozen=True, slots=True)
class ServiceRequest(Generic[Answer]):
    method: str
    path: str
    read: Callable[[bytes], Answer]
    """Parser of the answer's body. Raises pydantic's `ValidationError`."""
    body: BaseModel | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    silence_s: float | None = None
    """Longest silence of the service; None: the client's `idle_s`."""


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


# --- streams ------------------------------------------------------------------------------------


class Reception(ABC, Generic[Received]):
    """One stream of lines, received over as many connections as it takes."""

    def __init__(self, retry_s: float) -> None:
        self._backoff = Backoff(retry_s)
        self._partial_line: list[bytes] = []

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """True once all has been received."""

    @abstractmethod
    def _request(self) -> ServiceRequest[bytes]: ...

    @abstractmethod
    def _read(self, line: bytes) -> Iterator[Received]:
        """Yields what `line` completes, if it is wanted."""

    def request(self) -> ServiceRequest[bytes]:
        """Returns the request for what is still to come, over a new connection."""
        self._partial_line = []
        return self._request()

    def feed(self, chunk: bytes) -> Iterator[Received]:
        """Yields what `chunk` completes."""
        for line in self._lines(chunk):
            yield from self._read(line)
        self._backoff.progress()

    def _lines(self, chunk: bytes) -> Iterator[bytes]:
        """Yields whole lines. Only newline bytes end them: JSON text may hold other characters at
        which `str.splitlines` splits."""
        if b"\n" in chunk:
            *lines, chunk = b"".join((*self._partial_line, chunk)).split(b"\n")
            self._partial_line = []
            yield from lines
        self._partial_line.append(chunk)

    def closed(self) -> None:
        """Raises `httpx.RemoteProtocolError` if the connection was closed too early."""
        if not self.is_over:
            raise httpx.RemoteProtocolError(self._missing())

    @abstractmethod
    def _missing(self) -> str: ...

    def delay_s(self, error: ServiceCallError) -> float:
        """Returns the delay before the next try. Raises `error` if there is none."""
        return self._backoff.delay_s(error)


class RolloutReception(Reception[Received]):
    """Pending rollouts. Raises `WaitTimeout` when `timeout_s` have passed."""

    form: StreamForm

    def __init__(
        self, rollout_ids: Iterable[str], timeout_s: float, retry_s: float, idle_s: float
    ) -> None:
        super().__init__(retry_s)
        self.pending = dict.fromkeys(rollout_ids)
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._deadline = time.monotonic() + timeout_s

    @property
    def is_over(self) -> bool:
        return not self.pending

    def _request(self) -> ServiceRequest[bytes]:
        body = StreamRequest(rollout_ids=list(self.pending), form=self.form)
        silence_s = min(self._idle_s, self._seconds_left())
        return ServiceRequest("POST", "/v1/rollouts/stream", bytes, body, silence_s=silence_s)

    def feed(self, chunk: bytes) -> Iterator[Received]:
        yield from super().feed(chunk)
        if self.pending:
            self._seconds_left()

    def _is_new(self, rollout: Rollout) -> bool:
        if rollout.rollout_id not in self.pending:
            return False
        del self.pending[rollout.rollout_id]
        return True

    def _missing(self) -> str:
        return f"the stream ended with {len(self.pending)} rollouts still to come"

    def delay_s(self, error: ServiceCallError) -> float:
        left_s = self._seconds_left()
        return min(super().delay_s(error), left_s)

    def _seconds_left(self) -> float:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise WaitTimeout(list(self.pending), self._timeout_s)
        return left_s


class WholeReception(RolloutReception[Rollout]):
    form = StreamForm.WHOLE

    def _read(self, line: bytes) -> Iterator[Rollout]:
        if line.strip():
            rollout = Rollout.from_answer(line)
            if self._is_new(rollout):
                yield rollout


class PartsReception(RolloutReception[tuple[Rollout, bytes]]):
    """Summaries of rollouts, each with its content, which stays packed JSON."""

    form = StreamForm.PARTS
    _summary: Rollout | None = None

    def _request(self) -> ServiceRequest[bytes]:
        self._summary = None
        return super()._request()

    def _read(self, line: bytes) -> Iterator[tuple[Rollout, bytes]]:
        if not line.strip():
            return
        if self._summary is None:
            self._summary = Rollout.from_answer(line)
            return
        summary, self._summary = self._summary, None
        if not (line.startswith(content_start(summary.result_id)) and line.endswith(b"}")):
            raise httpx.RemoteProtocolError(
                f"what follows {summary.rollout_id} is not the content of its result"
            )
        if self._is_new(summary):
            yield summary, line


class EventReception(Reception[Event]):
    """Server-sent events, until the service ends them."""

    is_over = False

    def __init__(self, last_id: str | None, retry_s: float) -> None:
        """`last_id` is the id of the event to continue after; None starts from now on."""
        super().__init__(retry_s)
        self._last_id = last_id

    def _request(self) -> ServiceRequest[bytes]:
        self._fields: dict[str, str] = {}
        headers = {} if self._last_id is None else {"Last-Event-ID": self._last_id}
        return ServiceRequest("GET", "/v1/events", bytes, headers=headers)

    def _read(self, line: bytes) -> Iterator[Event]:
        if line:
            name, _, value = line.decode().partition(": ")
            self._fields[name] = value
            return
        fields, self._fields = self._fields, {}
        if "event" in fields:  # a comment has none
            data: Any = json.loads(fields["data"])
            given = {"id": fields.get("id"), "event": fields["event"], "data": data}
            event = Event.model_validate(given, extra="ignore")
            self._last_id = event.id or self._last_id
            self.is_over = event.event == "end"
            yield event

    def _missing(self) -> str:
        return "the stream of events ended"
