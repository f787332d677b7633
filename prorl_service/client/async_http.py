"""The client of the rollout service, for asyncio; `http` has its blocking face."""

import logging
import sys
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel

from prorl_service import __version__
from prorl_service.client.calls import IDLE_TIMEOUT_S, Piece
from prorl_service.client.errors import WaitTimeout
from prorl_service.client.retries import PartsReception, ServiceRequest, WholeReception
from prorl_service.client.trainable import blamed_on_engines, outage_of
from prorl_service.client.views import ViewCalls
from prorl_service.schemas import (
    Backends,
    BackendSpec,
    BackendStatus,
    BroadcastSpec,
    GatewayAccess,
    Group,
    GroupIds,
    Invalid,
    NcclGroupSpec,
    NcclGroupStatus,
    OwnedBackends,
    PolicyClaim,
    PolicyLease,
    Rollout,
    RolloutIds,
    Rollouts,
    Sampling,
    ServiceStatus,
    StreamedPush,
    SubmitRequest,
    TaskChecks,
    TaskProblem,
    TaskProblems,
    WeightsAt,
    WeightsQuery,
    WeightsReport,
    WeightsTerms,
)
from prorl_service.schemas.base import WireModel
from prorl_service.schemas.history import TrainerStep
from prorl_service.schemas.sampling import Candidates, DrawSpec, SamplerSpec, SamplerStatus

WEIGHTS_TIMEOUT_S = 900.0

logger = logging.getLogger(__name__)


class _ServiceHealth(WireModel):
    status: Literal["ok"]


class AsyncRolloutClient(ViewCalls):
    """Client of the service at `url`, for asyncio. Its arguments are `RolloutClient`'s.

    Every method raises `ServiceCallError`; the constructor raises `ProRLError` for what is not the
    URL of one service and for a token that cannot be read.
    """

    # --- rollouts ---------------------------------------------------------------------------------

    async def submit(
        self, groups: Sequence[Group], *, invalid: Invalid = "refuse"
    ) -> list[Rollout]:
        """Starts all rollouts of `groups`, or joins those already started under the same ids.

        `invalid`: whether a group that cannot run gets all groups refused, or fails alone.
        """
        body = SubmitRequest(groups=list(groups), invalid=invalid)
        return (await self._do("POST", "/v1/rollouts", Rollouts, body, parent_headers())).rollouts

    async def check_tasks(
        self, tasks: Sequence[Mapping[str, Any]], sampling: Sampling = Sampling()
    ) -> list[TaskProblem]:
        """Returns why tasks, as JSON, would be refused; submits nothing. At most 1,024 at once."""
        body = TaskChecks(tasks=[dict(one) for one in tasks], sampling=sampling)
        return (await self._do("POST", "/v1/tasks/check", TaskProblems, body)).problems

    async def get(self, rollout_id: str, wait_s: float = 0, *, shelf: bool = True) -> Rollout:
        """Returns the rollout as soon as it has ended, or as it is after `wait_s`.

        `shelf`: also return one that was acknowledged, if it is kept for people.
        """
        params: dict[str, Any] = {"wait_s": wait_s} | ({} if shelf else {"shelf": False})
        silence_s = wait_s + IDLE_TIMEOUT_S
        return await self._get(f"/v1/rollouts/{rollout_id}", Rollout, params, silence_s)

    async def wait(self, rollout_ids: Sequence[str], timeout_s: float) -> list[Rollout]:
        """Returns the ended rollouts in the order of `rollout_ids`. Raises `WaitTimeout`."""
        ended = {one.rollout_id: one async for one in self.stream(rollout_ids, timeout_s)}
        return [ended[rollout_id] for rollout_id in rollout_ids]

    def stream(self, rollout_ids: Iterable[str], timeout_s: float) -> AsyncGenerator[Rollout, None]:
        """Yields each rollout once, as it ends. Raises `WaitTimeout` after `timeout_s`.

        The time is checked when the service sends something, which it does every few seconds.
        """
        return self._receive(WholeReception(rollout_ids, timeout_s, self._retry_s, self._idle_s))

    async def finish(
        self, rollout_ids: Iterable[str], timeout_s: float, cancel_s: float = 60
    ) -> AsyncGenerator[Rollout, None]:
        """Does what `stream` does, but after `timeout_s` it cancels the rollouts that are left and
        yields them, too: blamed on the engines if none serves, and unended if they do not end
        within `cancel_s`."""
        try:
            async with aclosing(self.stream(rollout_ids, timeout_s)) as ended:
                async for rollout in ended:
                    yield rollout
            return
        except WaitTimeout as timeout:
            pending = timeout.pending
        logger.warning("%d rollouts did not end in %g s: cancelled", len(pending), timeout_s)
        outage = outage_of(await self.backends())
        left = {one.rollout_id: one for one in await self.cancel(pending)}
        try:
            async with aclosing(self.stream(pending, cancel_s)) as ended:
                async for rollout in ended:
                    del left[rollout.rollout_id]
                    yield blamed_on_engines(rollout, outage)
        except WaitTimeout:
            logger.warning("%d rollouts do not end; the caller goes on without them", len(left))
        for rollout in left.values():
            yield rollout

    def parts(
        self, rollout_ids: Iterable[str], timeout_s: float
    ) -> AsyncGenerator[tuple[Rollout, bytes], None]:
        """Does what `stream` does, but yields each rollout's summary and its content, which stays
        packed JSON: for fronts, which pass it on."""
        return self._receive(PartsReception(rollout_ids, timeout_s, self._retry_s, self._idle_s))

    async def cancel(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        ids = RolloutIds(rollout_ids=list(rollout_ids))
        return (await self._do("POST", "/v1/rollouts/cancel", Rollouts, ids)).rollouts

    async def gateway(self, rollout_id: str, wait_s: float = 60) -> GatewayAccess:
        """Returns where the program of a rollout with `where: outside` finds its model, as soon as
        it may begin. Raises `ServiceCallError` if it may not within `wait_s`."""
        path, silence_s = _gateway_of(rollout_id), wait_s + IDLE_TIMEOUT_S
        return await self._get(path, GatewayAccess, {"wait_s": wait_s}, silence_s)

    async def end_gateway(self, rollout_id: str) -> None:
        """Says that the program has ended, so that its rollout is graded."""
        await self._tell("POST", f"{_gateway_of(rollout_id)}/end")

    async def acknowledge(self, group_ids: Sequence[str]) -> None:
        """Lets the service forget these groups, whose rollouts have been received."""
        ids = GroupIds(group_ids=list(group_ids))
        await self._tell("POST", "/v1/groups/acknowledge", ids)

    # --- samplers ---------------------------------------------------------------------------------

    async def create_sampler(self, sampler_id: str, spec: SamplerSpec) -> SamplerStatus:
        """See `schemas.sampling`. Most callers want `client.sampling` instead."""
        return await self._do("PUT", f"/v1/samplers/{sampler_id}", SamplerStatus, spec)

    async def sampler(self, sampler_id: str, after: int = -1, wait_s: float = 0) -> SamplerStatus:
        """Returns its status as soon as its revision is not `after`, or as it is after `wait_s`."""
        path, params = f"/v1/samplers/{sampler_id}", {"after": after, "wait_s": wait_s}
        return await self._get(path, SamplerStatus, params, wait_s + IDLE_TIMEOUT_S)

    async def add_candidates(
        self, sampler_id: str, groups: Sequence[Group], *, is_last: bool = False
    ) -> SamplerStatus:
        path, body = (
            f"/v1/samplers/{sampler_id}/groups",
            Candidates(groups=list(groups), is_last=is_last),
        )
        return await self._do("POST", path, SamplerStatus, body, parent_headers())

    async def open_draw(self, sampler_id: str, draw_id: str, spec: DrawSpec) -> SamplerStatus:
        path = f"/v1/samplers/{sampler_id}/draws/{draw_id}"
        return await self._do("PUT", path, SamplerStatus, spec)

    async def delete_sampler(self, sampler_id: str) -> None:
        await self._tell("DELETE", f"/v1/samplers/{sampler_id}")

    # --- engines and weights ----------------------------------------------------------------------

    async def backends(self) -> list[BackendStatus]:
        return (await self._get("/v1/backends", Backends)).backends

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
        kind: str = "auto",
        model: str | None = None,
    ) -> BackendStatus:
        """Adds an engine, or renews the lease of one added before; see `BackendSpec`."""
        spec = BackendSpec(
            url=url,
            tokenizer=tokenizer,
            api_key=api_key,
            lease_s=lease_s,
            max_calls=max_calls,
            policy_version=policy_version,
            owner=owner,
            kind=kind,
            model=model,
        )
        return await self._do("POST", "/v1/backends", BackendStatus, spec)

    async def put_backends(
        self, owner: str, backends: Sequence[BackendSpec]
    ) -> list[BackendStatus]:
        """Replaces all engines of `owner`, which is a front."""
        body = OwnedBackends(owner=owner, backends=list(backends))
        return (await self._do("PUT", "/v1/backends", Backends, body)).backends

    async def remove_backend(self, backend_id: str) -> BackendStatus:
        return await self._do("DELETE", f"/v1/backends/{backend_id}", BackendStatus)

    async def claim_policy(self, claim: PolicyClaim) -> PolicyLease:
        """Gets the policy, or renews the lease of it. Most callers want `client.policy` instead."""
        return await self._do("POST", "/v1/policy", PolicyLease, claim)

    async def release_policy(self) -> None:
        """Lets another training have the policy, if this client's holds it."""
        await self._tell("POST", "/v1/policy/release")

    async def report_step(self, step: TrainerStep) -> None:
        """Reports a trainer's own metrics of a step. Most callers want `client.policy` instead."""
        await self._tell("POST", "/v1/training/steps", step)

    async def weights_terms(self, query: WeightsQuery) -> WeightsTerms:
        """Returns the form, type and way in which to send the next weights."""
        asked = query.model_dump(exclude_defaults=True)
        return await self._get("/v1/weights", WeightsTerms, asked)

    async def open_nccl_group(self, init_info: dict[str, Any]) -> NcclGroupStatus:
        """Has all engines join an NCCL group, which the caller joins meanwhile; see
        `NcclGroupSpec`."""
        spec = NcclGroupSpec(init_info=init_info)
        read, silence_s = NcclGroupStatus.from_answer, WEIGHTS_TIMEOUT_S
        request = ServiceRequest("POST", "/v1/weights/group", read, spec, silence_s=silence_s)
        return await self._send(request, retry_s=0)

    async def broadcast_weights(
        self, group: str, update_info: dict[str, Any], *, after: int = 0
    ) -> WeightsReport:
        """Has all engines receive what the caller broadcasts meanwhile in `group`; `after` as for
        `load_weights`."""
        spec = BroadcastSpec(group=group, update_info=update_info, after=after)
        return await self._send(_push("POST", "/v1/weights/broadcast", spec), retry_s=0)

    async def load_weights(self, path: str, *, after: int = 0) -> WeightsReport:
        """Has all engines load a safetensors file that the service can read, or a directory of
        such files that the engines can read. The report has their version, which is above `after`
        and all that the service has given. Needs a client with a `training`."""
        return await self._send(_push("POST", "/v1/weights", WeightsAt(path=path, after=after)))

    async def stream_weights(
        self, content: Iterable[Piece], *, after: int = 0, base: str = ""
    ) -> WeightsReport:
        """Sends one safetensors file, or with `base` a difference, in pieces, which this client
        makes in a thread, and the blocking one in its caller's; else like `load_weights`. Retried
        only if `content` can be iterated again."""
        retry_s = 0 if iter(content) is content else None
        params = StreamedPush(after=after, base=base).model_dump(exclude_defaults=True)
        request = _push("PUT", "/v1/weights", params=params)
        return await self._send(request, content, retry_s)

    # --- the service ------------------------------------------------------------------------------

    async def status(self) -> ServiceStatus:
        status = await self._get("/v1/status", ServiceStatus)
        _compare_version(status.version)
        return status

    async def health(self) -> None:
        """Raises `ServiceCallError` unless a rollout service answers."""
        await self._get("/health", _ServiceHealth)


def _gateway_of(rollout_id: str) -> str:
    return f"/v1/rollouts/{quote(rollout_id, safe='')}/gateway"


def _push(
    method: str, path: str, body: BaseModel | None = None, params: Mapping[str, Any] = {}
) -> ServiceRequest[WeightsReport]:
    read = WeightsReport.from_answer
    return ServiceRequest(method, path, read, body, params, silence_s=WEIGHTS_TIMEOUT_S)


@lru_cache
def _compare_version(of_service: str) -> None:
    """Warns once."""
    if of_service != __version__:
        logger.warning(
            "the service is prorl-service %s, this client is %s: install one version on both sides",
            of_service,
            __version__,
        )


def parent_headers() -> dict[str, str]:
    """Returns the caller's current span as a header, by which the service makes rollouts its
    children. OpenTelemetry is never imported here: if no other code has, nothing is traced."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return {}
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    flags = int(context.trace_flags) & 0xFF
    return {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"}
