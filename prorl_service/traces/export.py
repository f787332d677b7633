"""Export of ended rollouts' spans to a collector, by OTLP over HTTP.

The event loop puts each rollout, as the journal's bytes, into the bounded queue of the SDK's batch
processor. The processor's thread makes and sends its spans. A rollout that finds the queue full is
dropped whole and counted; a collector that does not answer costs spans and nothing else.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Self, TypeVar

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext

from prorl_service import __version__, metrics
from prorl_service.metrics import TraceOutcome
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal.tables import EndedRow
from prorl_service.rollouts.observers import Observer
from prorl_service.rollouts.record import RolloutRecord
from prorl_service.schemas import Group, Rollout
from prorl_service.traces.content import add_content
from prorl_service.traces.spans import SAMPLED, SpanMaker, is_traced, spans_of
from prorl_service.traces.tree import TracedRollout, tree

log = logging.getLogger(__name__)
T = TypeVar("T")

QUEUE_ROLLOUTS = 2048
QUEUE_BYTES = 64 << 20
BATCH_ROLLOUTS = 64
"""Rollouts that wake the processor before its delay (`OTEL_BSP_SCHEDULE_DELAY`) is over."""
REQUEST_SPANS = 512
REQUEST_BYTES = 4 << 20
"""Approximate size limit of a request; collectors refuse large ones."""
SPAN_BYTES = 256
"""Approximate size of a span without its texts."""
FLUSH_S = 5.0
"""Most seconds that unsent spans may delay a shutdown."""

SDK_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
EVERY_S = 60.0
"""Seconds between warnings."""
MAX_REASON = 300
"""Most characters of a logged reason."""

HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
"""Environment variables that may hold keys."""


class PendingRollout(ReadableSpan):
    """A rollout's entry in the processor's queue, in place of its spans."""

    def __init__(self, record: RolloutRecord, answer: bytes) -> None:
        super().__init__(record.rollout_id, context=_QUEUED, resource=_NOTHING)
        self.group: Group = record.group
        self.model = record.admitted.model
        self.answer = answer
        self.noticed_at = time.time()


_QUEUED = SpanContext(1, 1, is_remote=False, trace_flags=SAMPLED)
"""Ids that are never exported."""
_NOTHING = Resource({})


class Traces(Observer):
    """The tracer. Enter it before the journal, whose closing ends the last rollouts."""

    def __init__(self, endpoint: str, share: float, *, has_content: bool) -> None:
        """`endpoint`: URL of the collector's route for traces; `share`: of groups that are traced;
        `has_content`: messages, calls and results are exported. Removes the collector's keys from
        the environment."""
        self._share = share
        self._exporter = TreeExporter(endpoint, has_content=has_content)
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=QUEUE_ROLLOUTS,
            max_export_batch_size=BATCH_ROLLOUTS,
        )

    def follow(self, executor: RolloutExecutor, run: str, provider: Callable[[str], str]) -> None:
        """Traces rollouts of `run` that end in `executor`. `provider` maps a backend's id to its
        kind of engine, from any thread."""
        self._exporter.begin(run, provider)
        executor.inflight.observers.add(self)

    def ended(self, record: RolloutRecord, row: EndedRow) -> None:
        if not is_traced(record.group, self._share):
            return
        if self._exporter.reserve(len(row.answer)):
            self._processor.on_end(PendingRollout(record, row.answer))
        else:
            metrics.rollout_traced(TraceOutcome.DROPPED)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Sends remaining spans, for `FLUSH_S` at most."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

        # Not a thread of the loop's executor: the process would wait for it before it exits.
        threading.Thread(target=shut_down, name="end of traces", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_S):
                await ended.wait()
        except TimeoutError:
            self._exporter.give_up()


class TreeExporter(SpanExporter):
    """Makes the spans of pending rollouts, and sends them in requests of a bounded size."""

    def __init__(self, endpoint: str, *, has_content: bool) -> None:
        self._has_content = has_content
        self._provider: Callable[[str], str] = str
        self._otlp = OTLPSpanExporter(endpoint=endpoint)
        for variable in HEADERS:
            os.environ.pop(variable, None)
        self._trouble = Trouble(endpoint)
        self._maker = SpanMaker(_NOTHING)
        self._has_given_up = False
        self._lock = threading.Lock()
        self._rollouts = self._bytes = 0
        """Number and size of rollouts in the queue."""

    def begin(self, run: str, provider: Callable[[str], str]) -> None:
        """Sets the resource, in which OpenTelemetry's variables take precedence. Call it before the
        first export."""
        self._provider = provider
        own = {
            "service.name": "prorl",
            "service.version": __version__,
            "prorl.run.name": run,
        }
        self._maker = SpanMaker(Resource(own).merge(OTELResourceDetector().detect()))

    def reserve(self, size: int) -> bool:
        """Reserves `size` bytes of the queue. Returns False if full; an empty queue never is."""
        with self._lock:
            is_full = self._rollouts >= QUEUE_ROLLOUTS or self._bytes + size > QUEUE_BYTES
            if is_full and self._rollouts:
                return False
            self._rollouts += 1
            self._bytes += size
            return True

    def _free(self, size: int) -> None:
        with self._lock:
            self._rollouts -= 1
            self._bytes -= size

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends pending rollouts. Always succeeds: losses are counted and logged here."""
        for batch in _chunks(map(self._made, spans), _weight):
            self._send(batch)
        return SpanExportResult.SUCCESS

    def _made(self, pending: ReadableSpan) -> list[ReadableSpan]:
        """Returns no spans if making them fails: a bug must not cost the other rollouts theirs."""
        assert isinstance(pending, PendingRollout)
        self._free(len(pending.answer))
        try:
            return self._spans(pending)
        except Exception:
            log.exception("rollout %s: cannot make its spans", pending.name)
            return []

    def _spans(self, pending: PendingRollout) -> list[ReadableSpan]:
        rollout = Rollout.model_validate_json(pending.answer)
        ended = TracedRollout(rollout, pending.group, pending.model, pending.noticed_at)
        root = tree(ended, self._provider)
        if self._has_content:
            add_content(root, ended)
        return spans_of(root, rollout, pending.group, self._maker)

    def _send(self, batch: Sequence[list[ReadableSpan]]) -> None:
        """Sends whole rollouts, in one request unless a single rollout is too large for it."""
        parts = _chunks((span for made in batch for span in made), lambda span: _weight([span]))
        is_taken = not self._has_given_up and all(
            self._otlp.export(part) is SpanExportResult.SUCCESS for part in parts
        )
        for made in batch:
            if is_taken and made:
                metrics.rollout_traced(TraceOutcome.EXPORTED, spans=len(made))
            else:
                metrics.rollout_traced(TraceOutcome.REFUSED if made else TraceOutcome.DROPPED)
        if is_taken:
            self._trouble.taken()
        else:
            self._trouble.refused(len(batch))

    def give_up(self) -> None:
        """Aborts the request in flight as soon as possible and sends nothing more."""
        self._has_given_up = True
        self._otlp.shutdown()  # type: ignore[no-untyped-call]

    def shutdown(self) -> None:
        if not self._has_given_up:
            self.give_up()


class Trouble(logging.Handler):
    """Log lines about a collector that does not accept spans: occasional, with the reason.

    The SDK would log each attempt as an error; its records are caught here and give the reason.
    """

    def __init__(self, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._clock = clock
        self._reason = "unknown reason"
        self._warned_at: float | None = None
        """Time of the last warning; None while spans are accepted."""
        self._lost = 0
        """Rollouts lost since that warning."""
        sdk = logging.getLogger(SDK_LOGGER)
        sdk.handlers, sdk.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the reason in a record of the SDK, if it has one."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        reasons = [one for one in arguments if isinstance(one, Exception | str) and one != "spans"]
        if reasons:
            line = " ".join(str(reasons[-1]).split())
            code = next((f"status {one}, " for one in arguments if isinstance(one, int)), "")
            self._reason = (code + line)[:MAX_REASON]

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
        log.warning(text, self._endpoint, self._lost, self._reason)
        self._warned_at, self._lost = now, 0


def _chunks(items: Iterable[T], weight: Callable[[T], tuple[int, int]]) -> Iterator[list[T]]:
    """Yields items in chunks for one request each, in order. `weight` returns spans and bytes."""
    chunk: list[T] = []
    spans = size = 0
    for item in items:
        more_spans, more_bytes = weight(item)
        if chunk and (spans + more_spans > REQUEST_SPANS or size + more_bytes > REQUEST_BYTES):
            yield chunk
            chunk, spans, size = [], 0, 0
        chunk.append(item)
        spans += more_spans
        size += more_bytes
    if chunk:
        yield chunk


def _weight(spans: Sequence[ReadableSpan]) -> tuple[int, int]:
    """Returns the number of spans and their approximate size in bytes."""
    texts = (
        value
        for span in spans
        for value in (span.attributes or {}).values()
        if isinstance(value, str)
    )
    return len(spans), SPAN_BYTES * len(spans) + sum(map(len, texts))
