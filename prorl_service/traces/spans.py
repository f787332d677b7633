"""Conversion of a tree of plain data to spans of OpenTelemetry's SDK, with ids and links."""

from collections.abc import Iterator
from itertools import count

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from prorl_service import __version__
from prorl_service.schemas import Group, Rollout
from prorl_service.traces.context import SpanIds, below, parent_of, root_of, siblings_of
from prorl_service.traces.tree import Node, Value

SCOPE = InstrumentationScope("prorl_service", __version__)
SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def spans_of(root: Node, rollout: Rollout, group: Group, maker: "SpanMaker") -> list[ReadableSpan]:
    """Returns the tree's spans, parents first."""
    ids = root_of(group, rollout.index, rollout.created_at)
    numbers = count()

    def made(node: Node, parent: SpanContext | None, links: list[Link]) -> Iterator[ReadableSpan]:
        own = below(ids, next(numbers))
        yield maker.span(node, own, parent, links)
        for child in node.children:
            yield from made(child, _context(own), [])

    siblings = siblings_of(group, rollout.index, rollout.created_at)
    above = parent_of(group)
    remote = None if above is None else _context(above, is_remote=True)
    return list(made(root, remote, [Link(_context(one)) for one in siblings]))


class SpanMaker:
    """Makes spans with the attribute limits of the SDK's variables, such as
    `OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT`."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._limits = SpanLimits()

    def span(
        self, node: Node, ids: SpanIds, parent: SpanContext | None, links: list[Link]
    ) -> ReadableSpan:
        limits = self._limits
        return ReadableSpan(
            node.name,
            context=_context(ids),
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


def _context(ids: SpanIds, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(ids.trace, ids.span, is_remote, SAMPLED)


def _ns(at: float) -> int:
    return int(at * 1e9)
