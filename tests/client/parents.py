"""A current span, and a server that says which one its callers have."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import ErrorResponse, PolicyClaim, PolicyLease, TaskProblems
from prorl_service.schemas.base import WireModel
from tests.trl.status_service import STATUS

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
STEP = f"00-{TRACE:032x}-{SPAN:016x}-01"


@contextmanager
def step(trace_id: int = TRACE, *, is_sampled: bool = True) -> Iterator[None]:
    """A current span of the caller's, as OpenTelemetry's API has it."""
    flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
    context = SpanContext(trace_id, SPAN, is_remote=False, trace_flags=flags)
    with trace.use_span(NonRecordingSpan(context)):
        yield


@dataclass(frozen=True, slots=True)
class Refusing:
    url: str
    seen: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and `traceparent` of each request."""
    asked: threading.Event = field(default_factory=threading.Event)


def _granted(path: str, sent: bytes) -> WireModel | None:
    if path == "/v1/policy":
        training = PolicyClaim.model_validate_json(sent).training
        return PolicyLease(training=training, since=0, silent_s=0, is_live=True)
    return TaskProblems(problems=[]) if path == "/v1/tasks/check" else None


@contextmanager
def refusing() -> Iterator[Refusing]:
    """Is well, gives the policy to anyone and takes all tasks; answers all else with a 422."""
    body = ErrorResponse(error=InvalidRequest("not here").info()).model_dump_json().encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, STATUS.model_dump_json().encode())

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            if (granted := _granted(self.path, sent)) is not None:
                self._answer(200, granted.model_dump_json().encode())
                return
            running.seen.append((self.path, self.headers["traceparent"]))
            self._answer(422, body)
            running.asked.set()

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Refusing(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
