"""HTTP client of the rollout service; `async_http` has the same methods for asyncio.

`requests` describes each request once, as data; the clients add how they wait. Both do this:

- Every call is idempotent. It is retried if the service is unreachable, or answers that a retry can
  help: with exponential backoff, for at most `retry_s` after the last sign of progress.
- A broken stream resumes with the rollouts not yet received, even after a restart of the service. A
  service that began a new run has forgotten them: it answers 404, and the groups must be submitted
  again.
- Every failure is a `ServiceCallError` that says what to do about it; `WaitTimeout` is one.

Proxy settings of the environment are ignored: the service is a neighbour, not the internet.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Self

import httpx

from prorl_service.client import requests
from prorl_service.client.async_http import AsyncRolloutClient
from prorl_service.client.blocking import Blocking
from prorl_service.client.cells import fronts_in
from prorl_service.client.connections import Piece, Wire, settings, transport
from prorl_service.client.errors import (
    ServiceCallError,
    raise_for_status,
    readable_errors,
)
from prorl_service.client.fronts import asked_of_one, content_for_each
from prorl_service.client.requests import Answer, Request
from prorl_service.client.retries import Backoff, WholeReception
from prorl_service.client.views import ViewMethods
from prorl_service.schemas import (
    BackendSpec,
    BackendStatus,
    GatewayAccess,
    Group,
    Invalid,
    NcclGroupStatus,
    PolicyClaim,
    PolicyLease,
    Rollout,
    Sampling,
    ServiceStatus,
    TaskProblem,
    WeightsQuery,
    WeightsReport,
    WeightsTerms,
)
from prorl_service.schemas.sampling import DrawSpec, SamplerSpec, SamplerStatus


class RolloutClient(ViewMethods):
    """Blocking client of the service at `url`. Use it as a context manager, or `close` it.

    `url`: one address; or those of several fronts, with commas between them: groups are spread over
    them, and calls go where a group is (docs/scale.md#cells).
    `token`: the service's token; default: `PRORL_TOKEN` in the environment, or on this machine the
    token of your own services; "" is none.
    `retry_s`: seconds for which calls to an unreachable or overloaded service are retried.
    `idle_s`: seconds of silence after which a connection counts as broken.
    `wire`: encoding of token arrays; "packed" is smaller and faster, "json" is readable.
    `training`: key of the training that the calls are for; see `client.policy`.
    Every method raises `ServiceCallError`; the constructor raises `ProRLError` for what is no URL
    with 'http://' and for a token that cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retry_s: float = 60,
        idle_s: float = requests.IDLE_TIMEOUT_S,
        wire: Wire = "packed",
        training: str | None = None,
    ) -> None:
        fronts = fronts_in(url)
        self._retry_s = retry_s
        self._idle_s = idle_s
        self._several: AsyncRolloutClient | None = None
        if len(fronts) > 1:
            options: dict[str, Any] = {"token": token, "retry_s": retry_s, "idle_s": idle_s}
            options |= {"wire": wire, "training": training}
            self._several = AsyncRolloutClient(url, **options)
            self._blocking = Blocking()
            self._each = {one: RolloutClient(one, **options) for one in fronts}
            return
        connections = httpx.HTTPTransport(**transport())
        self._one = httpx.Client(**settings(url, token, wire, training), transport=connections)

    def each_front(self) -> "list[RolloutClient]":
        """Returns a client of each front, which this client closes; itself if there is one."""
        return [self] if self._several is None else list(self._each.values())

    @property
    def _http(self) -> httpx.Client:
        """Raises `ProRLError` if there are several fronts."""
        if self._several is not None:
            raise asked_of_one("this call", self._each)
        return self._one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        if self._several is None:
            self._one.close()
            return
        self._blocking.call(self._several.aclose())
        self._blocking.close()
        for client in self._each.values():
            client.close()

    def submit(self, groups: Sequence[Group], *, invalid: Invalid = "refuse") -> list[Rollout]:
        """Start all rollouts of `groups`, or join those already started under the same ids.

        `invalid`: whether a group that cannot run gets all groups refused, or fails alone. Of
        several fronts, each decides for its own groups.
        """
        return self._send(requests.submit(groups, invalid))

    def check_tasks(
        self, tasks: Sequence[Mapping[str, Any]], sampling: Sampling = Sampling()
    ) -> list[TaskProblem]:
        """Return why tasks, as JSON, would be refused; submit nothing. At most 1,024 at once."""
        return self._send(requests.check_tasks(tasks, sampling))

    def get(self, rollout_id: str, wait_s: float = 0, *, shelf: bool = True) -> Rollout:
        """Return the rollout as soon as it has ended, or as it is after `wait_s`.

        `shelf`: also return one that was acknowledged, if it is kept for people.
        """
        if self._several is not None:
            return self._blocking.call(self._several.get(rollout_id, wait_s, shelf=shelf))
        return self._send(requests.get(rollout_id, wait_s, shelf))

    def wait(self, rollout_ids: Sequence[str], timeout_s: float) -> list[Rollout]:
        """Return the ended rollouts in the order of `rollout_ids`. Raises `WaitTimeout`."""
        ended = {rollout.rollout_id: rollout for rollout in self.stream(rollout_ids, timeout_s)}
        return [ended[rollout_id] for rollout_id in rollout_ids]

    def stream(self, rollout_ids: Iterable[str], timeout_s: float) -> Iterator[Rollout]:
        """Yield each rollout once, as it ends. Raises `WaitTimeout` after `timeout_s`.

        The time is checked when the service sends something, which it does every few seconds.
        """
        if self._several is not None:
            yield from self._blocking.each(self._several.stream(rollout_ids, timeout_s))
            return
        reception = WholeReception(rollout_ids, timeout_s, self._retry_s, self._idle_s)
        while reception.pending:
            message = reception.request().build(self._http, idle_s=self._idle_s)
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

    def cancel(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        return self._send(requests.cancel(rollout_ids))

    def gateway(self, rollout_id: str, wait_s: float = 60) -> GatewayAccess:
        """Return where the program of a rollout with `where: outside` finds its model, as soon as
        it may begin. Raises `ServiceCallError` if it may not within `wait_s`."""
        return self._send(requests.gateway(rollout_id, wait_s))

    def end_gateway(self, rollout_id: str) -> None:
        """Say that the program has ended, so that its rollout is graded."""
        self._send(requests.end_gateway(rollout_id))

    def acknowledge(self, group_ids: Sequence[str]) -> None:
        """Let the service forget these groups, whose rollouts have been received."""
        self._send(requests.acknowledge(group_ids))

    def create_sampler(self, sampler_id: str, spec: SamplerSpec) -> SamplerStatus:
        """See `schemas.sampling`. Most callers want `client.sampling` instead."""
        return self._send(requests.create_sampler(sampler_id, spec))

    def sampler(self, sampler_id: str, after: int = -1, wait_s: float = 0) -> SamplerStatus:
        """Return its status as soon as its revision is not `after`, or as it is after `wait_s`."""
        return self._send(requests.sampler(sampler_id, after, wait_s))

    def add_candidates(
        self, sampler_id: str, groups: Sequence[Group], *, is_last: bool = False
    ) -> SamplerStatus:
        return self._send(requests.add_candidates(sampler_id, groups, is_last))

    def open_draw(self, sampler_id: str, draw_id: str, spec: DrawSpec) -> SamplerStatus:
        return self._send(requests.open_draw(sampler_id, draw_id, spec))

    def delete_sampler(self, sampler_id: str) -> None:
        self._send(requests.delete_sampler(sampler_id))

    def backends(self) -> list[BackendStatus]:
        return self._send(requests.BACKENDS)

    def add_backend(
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
        """Add an engine, or renew the lease of one added before; see `BackendSpec`."""
        return self._send(
            requests.add_backend(url, tokenizer, api_key, lease_s, max_calls, policy_version, owner)
        )

    def put_backends(self, owner: str, backends: Sequence[BackendSpec]) -> list[BackendStatus]:
        """Replace all engines of `owner`, which is a front."""
        return self._send(requests.put_backends(owner, backends))

    def remove_backend(self, backend_id: str) -> BackendStatus:
        return self._send(requests.remove_backend(backend_id))

    def claim_policy(self, claim: PolicyClaim) -> PolicyLease:
        """Have the policy, or renew the lease of it. Most callers want `client.policy` instead."""
        return self._send(requests.claim_policy(claim))

    def release_policy(self) -> None:
        """Let another training have the policy, if this client's holds it."""
        self._send(requests.RELEASE_POLICY)

    def weights_terms(self, query: WeightsQuery) -> WeightsTerms:
        """Return the form, type and way in which to send the next weights."""
        return self._send(requests.weights_terms(query))

    def open_nccl_group(self, init_info: dict[str, Any]) -> NcclGroupStatus:
        """Have all engines join an NCCL group, which the caller joins meanwhile; see
        `NcclGroupSpec`."""
        return self._send(requests.open_nccl_group(init_info), retry_s=0)

    def broadcast_weights(
        self, group: str, update_info: dict[str, Any], *, after: int = 0
    ) -> WeightsReport:
        """Have all engines receive what the caller broadcasts meanwhile in `group`; `after` as for
        `load_weights`."""
        return self._send(requests.broadcast_weights(group, update_info, after), retry_s=0)

    def load_weights(self, path: str, *, after: int = 0) -> WeightsReport:
        """Have all engines load a safetensors file that the service can read, or a directory of
        such files that the engines can read. The report has their version, which is above `after`
        and all that the service has given. Needs a client with a `training`."""
        return self._send(requests.load_weights(path, after))

    def stream_weights(self, content: Iterable[Piece], *, after: int = 0) -> WeightsReport:
        """Send one safetensors file in pieces; else like `load_weights`. Retried only if `content`
        can be iterated again."""
        retry_s = 0 if iter(content) is content else self._retry_s
        return self._send(requests.stream_weights(after), content, retry_s)

    def status(self) -> ServiceStatus:
        return self._send(requests.STATUS)

    def health(self) -> None:
        """Raises `ServiceCallError` unless a rollout service answers."""
        self._send(requests.HEALTH)

    def _send(
        self,
        request: Request[Answer],
        content: Iterable[Piece] | None = None,
        retry_s: float | None = None,
    ) -> Answer:
        if self._several is not None:
            return self._send_to_several(self._several, request, content, retry_s)
        backoff = Backoff(self._retry_s if retry_s is None else retry_s)
        while True:
            message = request.build(self._http, content, idle_s=self._idle_s)
            try:
                with readable_errors(message):
                    return request.parse(self._http.send(message))
            except ServiceCallError as error:
                time.sleep(backoff.delay_s(error))

    def _send_to_several(
        self,
        several: AsyncRolloutClient,
        request: Request[Answer],
        content: Iterable[Piece] | None,
        retry_s: float | None,
    ) -> Answer:
        """Reads content in this thread, which may have a device, once for each front."""
        if content is None:
            return self._blocking.call(several.send(request))
        pieces = content_for_each(content)
        answers = {url: one._send(request, pieces, retry_s) for url, one in self._each.items()}
        return request.join(answers)
