"""A stream of server-sent events over as many connections as it takes.

Pure: does no input or output and knows no event loop.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx

from prorl_service.client.errors import ServiceCallError
from prorl_service.client.requests import Request
from prorl_service.client.retries import Backoff
from prorl_service.schemas.views import Event


class EventReception:
    def __init__(self, last_id: str | None, retry_s: float, idle_s: float) -> None:
        """`last_id` is the id of the event to continue after; None starts from now on."""
        self.is_over = False
        """True once the service has ended the stream."""
        self._last_id = last_id
        self._idle_s = idle_s
        self._backoff = Backoff(retry_s)
        self._begin()

    def _begin(self) -> None:
        self._partial_line = b""
        self._fields: dict[str, str] = {}

    def build(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        self._begin()
        message = _EVENTS.build(http, idle_s=self._idle_s)
        if self._last_id is not None:
            message.headers["Last-Event-ID"] = self._last_id
        return message

    def feed(self, chunk: bytes) -> Iterator[Event]:
        self._backoff.progress()
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        for line in lines:
            if line:
                name, _, value = line.decode().partition(": ")
                self._fields[name] = value
            elif fields := self._take():
                yield self._event(fields)

    def _take(self) -> dict[str, str]:
        """Returns the fields of an event; a comment has none."""
        fields, self._fields = self._fields, {}
        return fields if "event" in fields else {}

    def _event(self, fields: dict[str, str]) -> Event:
        data: Any = json.loads(fields["data"])
        event = Event.model_validate(
            {"id": fields.get("id"), "event": fields["event"], "data": data}
        )
        self._last_id = event.id or self._last_id
        self.is_over = event.event == "end"
        return event

    def closed(self) -> None:
        if not self.is_over:
            raise httpx.RemoteProtocolError("the stream of events ended")

    def delay_s(self, error: ServiceCallError) -> float:
        """Returns the delay before the next try. Raises `error` if there is none."""
        return self._backoff.delay_s(error)


_EVENTS: Request[bytes] = Request("GET", "/v1/events", bytes)
