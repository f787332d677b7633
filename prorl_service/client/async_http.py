"""The client of the rollout service for asyncio: `http` without blocking."""

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self

import httpx

from prorl_service.client import requests
from prorl_service.client.cells import fronts_in, group_id_of
from prorl_service.client.connections import Piece, Wire, settings, transport
from prorl_service.client.errors import ServiceCallError, raise_for_status, readable_errors
from prorl_service.client.fronts import Fronts, asked_of_one, content_for_each
from prorl_service.client.requests import Answer, Request
from prorl_service.client.retries import (
    Backoff,
    PartsReception,
    Received,
    Reception,
    SummaryReception,
    WholeReception,
)
from prorl_service.client.views import AsyncViewMethods
from prorl_service.schemas import (
    BackendSpec,
    BackendStatus,
    GatewayAccess,
    Group,
    Invalid,
    PolicyClaim,
    PolicyLease,
    Rollout,
    Sampling,
    ServiceStatus,
    StreamForm,
    TaskProblem,
    WeightsQuery,
    WeightsReport,
    WeightsTerms,
)
from prorl_service.schemas.sampling import DrawSpec, SamplerSpec, SamplerStatus


class AsyncRolloutClient(AsyncViewMethods):
    """`RolloutClient` for asyncio: the same methods with the same meaning, awaited."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retry_s: float = 60,
        idle_s: float = requests.IDLE_TIMEOUT_S,
        wire: Wire = "packed",
        training: str | None = None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_answer`: called after each answer that is no error, and after each part of a
        stream."""
        self._retry_s = retry_s
        self._idle_s = idle_s
        self._on_answer = on_answer
        self._each: dict[str, AsyncRolloutClient] = {}
        """Clients of the fronts, if there are several."""
        if len(fronts := fronts_in(url)) > 1:
            self._each = {
                one: AsyncRolloutClient(
                    one,
                    token=token,
                    retry_s=retry_s,
                    idle_s=idle_s,
                    wire=wire,
                    training=training,
                    on_answer=on_answer,
                )
                for one in fronts
            }
            self._fronts = Fronts(self._each, retry_s)
            return
        connections = httpx.AsyncHTTPTransport(**transport())
        self._one = httpx.AsyncClient(**settings(url, token, wire, training), transport=connections)

    def each_front(self) -> "list[AsyncRolloutClient]":
        return list(self._each.values()) or [self]

    @property
    def _http(self) -> httpx.AsyncClient:
        """Raises `ProRLError` if there are several fronts."""
        if self._each:
            raise asked_of_one("this call", self._each)
        return self._one

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        for client in self._each.values():
            await client.aclose()
        if not self._each:
            await self._one.aclose()

    def limited(self, *, retry_s: float, idle_s: float) -> Self:
        """Returns a client with these limits over the same connections, which this one closes."""
        other = copy.copy(self)
        other._retry_s, other._idle_s = retry_s, idle_s
        if self._each:
            limits = {"retry_s": retry_s, "idle_s": idle_s}
            other._each = {url: one.limited(**limits) for url, one in self._each.items()}
            other._fronts = Fronts(other._each, retry_s)
        return other

    async def submit(
        self, groups: Sequence[Group], *, invalid: Invalid = "refuse"
    ) -> list[Rollout]:
        return await self._send(requests.submit(groups, invalid))

    async def check_tasks(
        self, tasks: Sequence[Mapping[str, Any]], sampling: Sampling = Sampling()
    ) -> list[TaskProblem]:
        """Return why tasks, as JSON, would be refused; submit nothing. At most 1,024 at once."""
        return await self._send(requests.check_tasks(tasks, sampling))

    async def get(self, rollout_id: str, wait_s: float = 0, *, shelf: bool = True) -> Rollout:
        if self._each:
            return await self._get_from_several(rollout_id, wait_s, shelf=shelf)
        return await self._send(requests.get(rollout_id, wait_s, shelf))

    async def _get_from_several(self, rollout_id: str, wait_s: float, *, shelf: bool) -> Rollout:
        once = {url: one.limited(retry_s=0, idle_s=self._idle_s) for url, one in self._each.items()}
        return await self._fronts.find(
            group_id_of(rollout_id), lambda front: once[front].get(rollout_id, wait_s, shelf=shelf)
        )

    async def wait(self, rollout_ids: Sequence[str], timeout_s: float) -> list[Rollout]:
        ended = {
            rollout.rollout_id: rollout async for rollout in self.stream(rollout_ids, timeout_s)
        }
        return [ended[rollout_id] for rollout_id in rollout_ids]

    def stream(self, rollout_ids: Iterable[str], timeout_s: float) -> AsyncGenerator[Rollout, None]:
        if self._each:
            each = {url: one.stream for url, one in self._each.items()}
            return self._fronts.stream(rollout_ids, timeout_s, each, _id_of)
        return self._receive(WholeReception(rollout_ids, timeout_s, self._retry_s, self._idle_s))

    def summaries(
        self, rollout_ids: Iterable[str], timeout_s: float
    ) -> AsyncGenerator[Rollout, None]:
        """Does what `stream` does, but yields rollouts without their content: for fronts."""
        if self._each:
            each = {url: one.summaries for url, one in self._each.items()}
            return self._fronts.stream(rollout_ids, timeout_s, each, _id_of)
        return self._receive(SummaryReception(rollout_ids, timeout_s, self._retry_s, self._idle_s))

    def parts(
        self, rollout_ids: Iterable[str], timeout_s: float
    ) -> AsyncGenerator[tuple[Rollout, bytes], None]:
        """Does what `stream` does, but yields each rollout's summary and its content, which stays
        packed JSON: for fronts, which pass it on."""
        if self._each:
            each = {url: one.parts for url, one in self._each.items()}
            return self._fronts.stream(rollout_ids, timeout_s, each, lambda parts: _id_of(parts[0]))
        return self._receive(PartsReception(rollout_ids, timeout_s, self._retry_s, self._idle_s))

    async def _receive(self, reception: Reception[Received]) -> AsyncGenerator[Received, None]:
        while reception.pending:
            message = reception.request().build(self._http, idle_s=self._idle_s)
            try:
                with readable_errors(message):
                    async with aclosing(await self._http.send(message, stream=True)) as response:
                        if response.is_error:
                            await response.aread()
                        raise_for_status(response)
                        async for chunk in response.aiter_bytes():
                            self._on_answer()
                            for received in reception.feed(chunk):
                                yield received
                        reception.closed()
            except ServiceCallError as error:
                await asyncio.sleep(reception.delay_s(error))

    async def cancel(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        return await self._send(requests.cancel(rollout_ids))

    async def gateway(self, rollout_id: str, wait_s: float = 60) -> GatewayAccess:
        return await self._send(requests.gateway(rollout_id, wait_s))

    async def end_gateway(self, rollout_id: str) -> None:
        await self._send(requests.end_gateway(rollout_id))

    async def acknowledge(self, group_ids: Sequence[str]) -> None:
        await self._send(requests.acknowledge(group_ids))

    async def create_sampler(self, sampler_id: str, spec: SamplerSpec) -> SamplerStatus:
        return await self._send(requests.create_sampler(sampler_id, spec))

    async def sampler(self, sampler_id: str, after: int = -1, wait_s: float = 0) -> SamplerStatus:
        return await self._send(requests.sampler(sampler_id, after, wait_s))

    async def add_candidates(
        self, sampler_id: str, groups: Sequence[Group], *, is_last: bool = False
    ) -> SamplerStatus:
        return await self._send(requests.add_candidates(sampler_id, groups, is_last))

    async def open_draw(self, sampler_id: str, draw_id: str, spec: DrawSpec) -> SamplerStatus:
        return await self._send(requests.open_draw(sampler_id, draw_id, spec))

    async def delete_sampler(self, sampler_id: str) -> None:
        await self._send(requests.delete_sampler(sampler_id))

    async def backends(self) -> list[BackendStatus]:
        return await self._send(requests.BACKENDS)

    async def add_backend(
        self,
        url: str,
        tokenizer: str | None = None,
        *,
        api_key: str | None = None,
        lease_s: float | None = None,
        max_calls: int | None = None,
        policy_version: int | None = None,
        owner: str | None = None,
    ) -> BackendStatus:
        return await self._send(
            requests.add_backend(url, tokenizer, api_key, lease_s, max_calls, policy_version, owner)
        )

    async def put_backends(
        self, owner: str, backends: Sequence[BackendSpec]
    ) -> list[BackendStatus]:
        return await self._send(requests.put_backends(owner, backends))

    async def remove_backend(self, backend_id: str) -> BackendStatus:
        return await self._send(requests.remove_backend(backend_id))

    async def claim_policy(self, claim: PolicyClaim) -> PolicyLease:
        return await self._send(requests.claim_policy(claim))

    async def release_policy(self) -> None:
        await self._send(requests.RELEASE_POLICY)

    async def weights_terms(self, query: WeightsQuery) -> WeightsTerms:
        return await self._send(requests.weights_terms(query))

    async def load_weights(self, path: str, *, after: int = 0) -> WeightsReport:
        return await self._send(requests.load_weights(path, after))

    async def stream_weights(self, content: Iterable[Piece], *, after: int = 0) -> WeightsReport:
        """Like `RolloutClient.stream_weights`; the pieces are made in a thread."""
        retry_s = 0 if iter(content) is content else self._retry_s
        return await self._send(requests.stream_weights(after), content, retry_s)

    async def status(self) -> ServiceStatus:
        return await self._send(requests.STATUS)

    async def health(self) -> None:
        await self._send(requests.HEALTH)

    async def _send(
        self,
        request: Request[Answer],
        content: Iterable[Piece] | None = None,
        retry_s: float | None = None,
    ) -> Answer:
        if self._each:
            return await self._send_to_several(request, content, retry_s)
        backoff = Backoff(self._retry_s if retry_s is None else retry_s)
        while True:
            pieces = None if content is None else _in_thread(content)
            message = request.build(self._http, pieces, idle_s=self._idle_s)
            try:
                with readable_errors(message):
                    answer = request.parse(await self._http.send(message))
                self._on_answer()
                return answer
            except ServiceCallError as error:
                await asyncio.sleep(backoff.delay_s(error))

    async def _send_to_several(
        self,
        request: Request[Answer],
        content: Iterable[Piece] | None,
        retry_s: float | None,
    ) -> Answer:
        if content is None:
            return await self._fronts.send(request)
        pieces = content_for_each(content)
        answers = {
            url: await one._send(request, pieces, retry_s) for url, one in self._each.items()
        }
        return request.join(answers)

    async def send(self, request: Request[Answer], retry_s: float | None = None) -> Answer:
        """Returns the answer to a request of `requests`. `retry_s`: None for the client's own."""
        return await self._send(request, retry_s=retry_s)

    async def check_known(self, rollout_id: str) -> None:
        """Asks once. Raises `ServiceCallError`, of status 404 if the front does not know it."""
        request = requests.stream([rollout_id], self._idle_s, StreamForm.SUMMARY)
        message = request.build(self._http, idle_s=self._idle_s)
        with readable_errors(message):
            async with aclosing(await self._http.send(message, stream=True)) as response:
                if response.is_error:
                    await response.aread()
                raise_for_status(response)


def _id_of(rollout: Rollout) -> str:
    return rollout.rollout_id


async def _in_thread(content: Iterable[Piece]) -> AsyncIterator[Piece]:
    """Yield the pieces of `content`, each of which may take the time of a disk or device copy."""
    pieces = iter(content)
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
