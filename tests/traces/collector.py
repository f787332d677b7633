"""An OpenTelemetry collector of a few lines, on loopback: keeps the spans that it is sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

PROMPT_EXPORT = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
"""Has the SDK export after so many milliseconds."""


@dataclass(frozen=True, slots=True)
class Received:
    """One span. Times are Unix time in seconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: float
    end: float
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[tuple[str, str]]
    is_error: bool
    message: str
    is_client: bool


class Collector:
    """`url`; `spans` in the order of arrival; `resource`, the newest; `headers` of each request.
    Set `status` to refuse what comes."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.resource: dict[str, Any] = {}
        self.headers: list[dict[str, str]] = []
        self.sizes: list[int] = []
        self.status = 200
        self.url = ""
        self._changed = threading.Condition()

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        message = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            self.headers.append(headers)
            self.sizes.append(len(body))
            for resource_spans in message.resource_spans:
                self.resource = _values(resource_spans.resource.attributes)
                for scope in resource_spans.scope_spans:
                    self.spans += map(_received, scope.spans)
            self._changed.notify_all()

    def wait_for(self, rollouts: int, timeout_s: float = 60) -> list[Received]:
        """The spans of so many rollouts, which come whole."""
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self.roots()) >= rollouts, timeout_s)
            assert enough, f"{len(self.roots())} of {rollouts} rollouts"
            return list(self.spans)

    def roots(self) -> list[Received]:
        return [one for one in self.spans if one.name.startswith("invoke_agent")]

    def below(self, parent: Received) -> list[Received]:
        """Its children, in the order in which they began."""
        children = [one for one in self.spans if one.parent_id == parent.span_id]
        return sorted(children, key=lambda one: one.start)


def _received(span: Span) -> Received:
    return Received(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano / 1e9,
        end=span.end_time_unix_nano / 1e9,
        attributes=_values(span.attributes),
        events=[(one.name, _values(one.attributes)) for one in span.events],
        links=[(one.trace_id.hex(), one.span_id.hex()) for one in span.links],
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
        message=span.status.message,
        is_client=span.kind == Span.SPAN_KIND_CLIENT,
    )


def _values(attributes: "Any") -> dict[str, Any]:
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None


@contextmanager
def collector(port: int = 0) -> Iterator[Collector]:
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if kept.status == 200 and self.path == "/v1/traces":
                kept.take(body, {key.lower(): value for key, value in self.headers.items()})
            self.send_response(kept.status if self.path == "/v1/traces" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    kept.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
