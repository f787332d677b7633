"""The clients' methods for people: lists, texts, tokens, agents, training, events.

`http` has the clients, which add how requests are sent.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, closing

import httpx

from prorl_service.client import view_requests
from prorl_service.client.errors import ServiceCallError, raise_for_status, readable_errors
from prorl_service.client.events import EventReception
from prorl_service.client.requests import Answer, Request
from prorl_service.schemas.views import (
    AgentInfo,
    Event,
    GroupQuery,
    GroupRows,
    RolloutQuery,
    RolloutRows,
    RolloutText,
    TokenSlice,
    Training,
)


class ViewMethods(ABC):
    _retry_s: float
    _idle_s: float

    @property
    @abstractmethod
    def _http(self) -> httpx.Client: ...

    @abstractmethod
    def _send(self, request: Request[Answer]) -> Answer: ...

    def groups(self, query: GroupQuery | None = None) -> GroupRows:
        """Returns a page of groups in flight and ended, newest first."""
        return self._send(view_requests.groups(query or GroupQuery()))

    def rollouts(self, query: RolloutQuery | None = None) -> RolloutRows:
        """Returns a page of rollouts in flight and ended, newest first."""
        return self._send(view_requests.rollouts(query or RolloutQuery()))

    def text(self, rollout_id: str, *, run: str | None = None) -> RolloutText:
        """Returns the rollout as a conversation; `run` picks one if several runs have the id."""
        return self._send(view_requests.text(rollout_id, run))

    def tokens(
        self,
        rollout_id: str,
        *,
        segment: int = 0,
        start: int = 0,
        n: int = 1024,
        run: str | None = None,
    ) -> TokenSlice:
        """Returns `n` tokens of a segment from `start` on; the prompt's come first."""
        return self._send(view_requests.tokens(rollout_id, segment, start, n, run))

    def page(
        self, group_ids: Sequence[str], *, run: str | None = None, title: str | None = None
    ) -> bytes:
        """Returns whole groups as one HTML file, which needs no service."""
        return self._send(view_requests.page(group_ids, run, title))

    def training(self, *, run: str | None = None, agent: str | None = None) -> Training:
        """Returns statistics of `run`, or of the service's own run, by policy version."""
        return self._send(view_requests.training(run, agent))

    def agents(self) -> list[AgentInfo]:
        return self._send(view_requests.AGENTS)

    def events(self, last_id: str | None = None) -> Iterator[Event]:
        """Yields live events after the event `last_id`, or from now on. Reconnects when the
        connection breaks; the last event is `end`, when the service stops."""
        reception = EventReception(last_id, self._retry_s, self._idle_s)
        while not reception.is_over:
            message = reception.build(self._http)
            try:
                with (
                    readable_errors(message),
                    closing(self._http.send(message, stream=True)) as response,
                ):
                    if response.is_error:
                        response.read()
                    raise_for_status(response)
                    for chunk in response.iter_bytes():
                        yield from reception.feed(chunk)
                    reception.closed()
            except ServiceCallError as error:
                time.sleep(reception.delay_s(error))


class AsyncViewMethods(ABC):
    """Asynchronous `ViewMethods`."""

    _retry_s: float
    _idle_s: float

    @property
    @abstractmethod
    def _http(self) -> httpx.AsyncClient: ...

    @abstractmethod
    async def _send(self, request: Request[Answer]) -> Answer: ...

    async def groups(self, query: GroupQuery | None = None) -> GroupRows:
        return await self._send(view_requests.groups(query or GroupQuery()))

    async def rollouts(self, query: RolloutQuery | None = None) -> RolloutRows:
        return await self._send(view_requests.rollouts(query or RolloutQuery()))

    async def text(self, rollout_id: str, *, run: str | None = None) -> RolloutText:
        return await self._send(view_requests.text(rollout_id, run))

    async def tokens(
        self,
        rollout_id: str,
        *,
        segment: int = 0,
        start: int = 0,
        n: int = 1024,
        run: str | None = None,
    ) -> TokenSlice:
        return await self._send(view_requests.tokens(rollout_id, segment, start, n, run))

    async def page(
        self, group_ids: Sequence[str], *, run: str | None = None, title: str | None = None
    ) -> bytes:
        return await self._send(view_requests.page(group_ids, run, title))

    async def training(self, *, run: str | None = None, agent: str | None = None) -> Training:
        return await self._send(view_requests.training(run, agent))

    async def agents(self) -> list[AgentInfo]:
        return await self._send(view_requests.AGENTS)

    async def events(self, last_id: str | None = None) -> AsyncIterator[Event]:
        reception = EventReception(last_id, self._retry_s, self._idle_s)
        while not reception.is_over:
            message = reception.build(self._http)
            try:
                with readable_errors(message):
                    async with aclosing(await self._http.send(message, stream=True)) as response:
                        if response.is_error:
                            await response.aread()
                        raise_for_status(response)
                        async for chunk in response.aiter_bytes():
                            for event in reception.feed(chunk):
                                yield event
                        reception.closed()
            except ServiceCallError as error:
                await asyncio.sleep(reception.delay_s(error))
