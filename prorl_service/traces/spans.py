"""Conversion of a tree of plain data to spans of OpenTelemetry's SDK, with ids and links.

All ids follow from the rollout itself, so that no state is kept over a restart, siblings can be
linked before they have ended, and a group is traced as a whole or not at all.
"""

from collections.abc import Iterator
from hashlib import blake2b
from itertools import count

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from prorl_service import __version__
from prorl_service.schemas import Group, Rollout
from prorl_service.traces.tree import Node, Value

SCOPE = InstrumentationScope("prorl_service", __version__)
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
MAX_LINKS = 32
"""Most siblings that a rollout links to."""


def spans_of(root: Node, rollout: Rollout, group: Group, maker: "SpanMaker") -> list[ReadableSpan]:
    """Returns the tree's spans, parents first."""
    first = root_of(group, rollout.index, rollout.created_at)
    numbers = count()

    def made(node: Node, parent: SpanContext | None, links: list[Link]) -> Iterator[ReadableSpan]:
        own = below(first, next(numbers))
        yield maker.span(node, own, parent, links)
        for child in node.children:
            yield from made(child, own, [])

    siblings = siblings_of(group, rollout.index, rollout.created_at)
    return list(made(root, parent_of(group), [Link(one) for one in siblings]))


class SpanMaker:
    """Makes spans with the attribute limits of the SDK's variables, such as
    `OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT`."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._limits = SpanLimits()

    def span(
        self, node: Node, own: SpanContext, parent: SpanContext | None, links: list[Link]
    ) -> ReadableSpan:
        limits = self._limits
        return ReadableSpan(
            node.name,
            context=own,
            parent=parent,
            resource=self._resource,
            attributes=BoundedAttributes(
                limits.max_span_attributes,
                node.attributes,
                max_value_len=limits.max_span_attribute_length,
            ),
            events=[
                Event(one.name, self._bounded(one.attributes), _ns(one.at))
                for one in node.events[: limits.max_events]
            ],
            links=links[: limits.max_links],
            kind=SpanKind.CLIENT if node.is_request else SpanKind.INTERNAL,
            status=_status(node),
            start_time=_ns(node.start),
            end_time=_ns(node.end),
            instrumentation_scope=SCOPE,
        )

    def _bounded(self, attributes: dict[str, Value]) -> BoundedAttributes:
        limits = self._limits
        return BoundedAttributes(
            limits.max_event_attributes, attributes, max_value_len=limits.max_attribute_length
        )


def _status(node: Node) -> Status:
    if node.problem is None:
        return Status(StatusCode.UNSET)
    return Status(StatusCode.ERROR, node.problem or None)


def _ns(at: float) -> int:
    return int(at * 1e9)


# --- ids ----------------------------------------------------------------------------------------


def is_traced(group: Group, share: float) -> bool:
    """Samples by a hash of the group's id, and only groups whose parent, if any, is recorded."""
    parent = group.traceparent
    if parent is not None and not int(parent[-2:], 16) & TraceFlags.SAMPLED:
        return False
    return _hash(group.group_id, bits=64) < share * 2**64


def parent_of(group: Group) -> SpanContext | None:
    """Returns None if each rollout of the group is a trace of its own."""
    if group.traceparent is None:
        return None
    _, trace, parent, _ = group.traceparent.split("-")
    return SpanContext(int(trace, 16), int(parent, 16), is_remote=True, trace_flags=SAMPLED)


def root_of(group: Group, index: int, created_at: float) -> SpanContext:
    """Returns the context of a rollout's own span. `created_at`, when the group was accepted,
    separates groups that have the same id in other runs."""
    key = f"{group.rollout_id(index)} {created_at!r}"
    parent = parent_of(group)
    trace = _hash(f"trace {key}", bits=128) if parent is None else parent.trace_id
    return SpanContext(trace, _hash(f"span {key}", bits=64), is_remote=False, trace_flags=SAMPLED)


def below(root: SpanContext, number: int) -> SpanContext:
    """Returns the context of one of the rollout's spans; number 0 is the root."""
    if number == 0:
        return root
    own = _hash(f"{root.trace_id:x} {root.span_id:x} {number}", bits=64)
    return SpanContext(root.trace_id, own, is_remote=False, trace_flags=SAMPLED)


def siblings_of(group: Group, index: int, created_at: float) -> list[SpanContext]:
    """Returns the first `MAX_LINKS` siblings, by index."""
    others = [one for one in range(min(group.n, MAX_LINKS + 1)) if one != index]
    return [root_of(group, one, created_at) for one in others[:MAX_LINKS]]


def _hash(text: str, *, bits: int) -> int:
    """Returns a hash that is never 0, which means "no id"."""
    return int.from_bytes(blake2b(text.encode(), digest_size=bits // 8).digest()) or 1
