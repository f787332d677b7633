"""A current span, and a server that says which one its callers have."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import PolicyClaim, PolicyLease, TaskProblems
from prorl_service.schemas.base import WireModel
from tests import builders
from tests.client.scripted import answering, answers, fails, read_body

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

    def answer(handler: BaseHTTPRequestHandler) -> None:
        sent = read_body(handler)
        if handler.command == "GET":
            answers(builders.status())(handler)
        elif (granted := _granted(handler.path, sent)) is not None:
            answers(granted)(handler)
        else:
            running.seen.append((handler.path, handler.headers["traceparent"]))
            fails(InvalidRequest("not here"), 422)(handler)
            running.asked.set()

    with answering(answer) as url:
        running = Refusing(url)
        yield running
