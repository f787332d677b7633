"""Dialects in which harnesses talk to models: JSON to requests, replies to JSON or events. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol, cast

from prorl_service.gateway.calls import CallReply, CallRequest, Refused
from prorl_service.gateway.dialects import chat, messages, responses
from prorl_service.gateway.dialects.fields import Body, readable


class Dialect(Protocol):
    """What each module of this package has."""

    def request(self, body: Body) -> CallRequest:
        """Reads a request. Raises `Refused`."""

    def reply(self, answer: CallReply) -> dict[str, Any]:
        """Writes a reply that is not streamed."""

    def waiting(self, pending: CallReply, sent: int) -> bytes:
        """Writes an event that keeps clients from giving up while nothing is sampled yet, as number
        `sent` of the stream. `pending` has the ids of the reply to come."""

    def events(self, answer: CallReply, body: Body, sent: int = 0) -> Iterator[bytes]:
        """Writes the stream of a reply, after `sent` events that said to wait."""

    def error(self, refusal: Refused) -> dict[str, Any]: ...

    def error_event(self, refusal: Refused, pending: CallReply, sent: int) -> bytes:
        """Ends a stream after `sent` events that said to wait."""


DIALECTS: Mapping[str, Dialect] = {
    "/chat/completions": cast(Dialect, chat),
    "/responses": cast(Dialect, responses),
    "/messages": cast(Dialect, messages),
}
"""Modules by the end of the path that clients use."""


def call_of(dialect: Dialect, body: Body, *, sees: bool = False) -> CallRequest:
    """Reads a request, whatever is in it. `sees`: the policy sees pictures. Raises `Refused`."""
    try:
        read, omitted = readable(body, sees=sees)
        call = dialect.request(read)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise Refused(f"the request has a field of another type than expected: {error}") from error
    if not call.conversation:
        raise Refused("the conversation is empty: it needs at least one message")
    return replace(call, left_out=(*call.left_out, *omitted))


__all__ = ["DIALECTS", "Body", "Dialect", "call_of"]
