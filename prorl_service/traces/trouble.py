"""Log lines about a collector that does not accept spans: occasional, with the reason.

The SDK would log each attempt as an error; its records are caught here and give the reason.
"""

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

SDK_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
EVERY_S = 60.0
MAX_REASON = 300
"""Most characters of a logged reason."""


class Trouble:
    def __init__(self, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._reason = _LastWords()
        self._warned_at: float | None = None
        """Time of the last warning; None while spans are accepted."""
        self._lost = 0
        """Rollouts lost since that warning."""
        sdk = logging.getLogger(SDK_LOGGER)
        sdk.handlers, sdk.propagate = [self._reason], False

    def taken(self) -> None:
        """Notes that spans were exported."""
        if self._warned_at is not None:
            more = f"; spans of {self._lost} more rollouts were lost" if self._lost else ""
            log.info("%s accepts spans again%s", self._endpoint, more)
        self._warned_at, self._lost = None, 0

    def refused(self, rollouts: int) -> None:
        """Notes that spans of so many rollouts were lost."""
        self._lost += rollouts
        now = self._clock()
        if self._warned_at is not None and now < self._warned_at + EVERY_S:
            return
        text = "%s does not accept spans; those of %d rollouts are lost: %s"
        log.warning(text, self._endpoint, self._lost, self._reason.text)
        self._warned_at, self._lost = now, 0


class _LastWords(logging.Handler):
    """Keeps the SDK's reason for the last failure, from its last record that has one."""

    def __init__(self) -> None:
        super().__init__()
        self.text = "unknown reason"

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        reasons = [one for one in arguments if isinstance(one, Exception | str) and one != "spans"]
        if reasons:
            line = " ".join(str(reasons[-1]).split())
            code = next((f"status {one}, " for one in arguments if isinstance(one, int)), "")
            self.text = (code + line)[:MAX_REASON]
