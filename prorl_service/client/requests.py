"""The requests of the service's HTTP interface, as data.

Does no I/O and knows no event loop: `http` sends the requests and waits for the answers.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel

from prorl_service import __version__
from prorl_service.client import merging
from prorl_service.client.cells import engine_key, group_id_of
from prorl_service.client.errors import raise_for_status
from prorl_service.client.spreads import (
    AtEngine,
    AtOne,
    ByEngine,
    ByGroup,
    Drawing,
    Everywhere,
    Feeding,
    Polling,
    SamplerCreation,
    SamplerDeletion,
    Spread,
    Submission,
)
from prorl_service.client.tracing import parent_headers
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
    Push,
    Rollout,
    RolloutIds,
    Rollouts,
    Sampling,
    ServiceStatus,
    StreamForm,
    StreamRequest,
    SubmitRequest,
    TaskChecks,
    TaskProblem,
    TaskProblems,
    WeightsAt,
    WeightsQuery,
    WeightsReport,
    WeightsTerms,
)
from prorl_service.schemas.sampling import Candidates, DrawSpec, SamplerSpec, SamplerStatus

CONNECT_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 60.0
"""Silence after which a connection counts as broken; streams send empty lines more often."""
WEIGHTS_TIMEOUT_S = 900.0

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Request(Generic[Answer]):
    method: str
    path: str
    answer: Callable[[bytes], Answer]
    body: BaseModel | None = None
    params: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    """Longest silence of the service; None: the client's `idle_s`."""
    spread: Spread | None = None
    """Fronts that are asked if there are several; None: the caller has to name one."""

    def build(
        self, http: httpx.Client | httpx.AsyncClient, content: Any = None, *, idle_s: float
    ) -> httpx.Request:
        headers = {"Content-Type": "application/octet-stream"} if content is not None else {}
        if self.body is not None:
            content = self.body.model_dump_json().encode()
            headers = {"Content-Type": "application/json"}
        read_s = idle_s if self.timeout_s is None else self.timeout_s
        connect_s = min(CONNECT_TIMEOUT_S, idle_s)
        timeout = httpx.Timeout(idle_s, connect=connect_s, read=read_s)
        return http.build_request(
            self.method,
            self.path,
            content=content,
            params=self.params,
            headers=self.headers | headers,
            timeout=timeout,
        )

    def parse(self, response: httpx.Response) -> Answer:
        raise_for_status(response)
        return self.answer(response.content)

    def join(self, answers: Mapping[str, Answer]) -> Answer:
        """Returns one answer of those of all fronts, for a request that all of them are asked."""
        assert isinstance(self.spread, Everywhere)
        joined: Answer = self.spread.join(answers)
        return joined


def _status(raw: bytes) -> ServiceStatus:
    status = ServiceStatus.model_validate_json(raw)
    _compare_version(status.version)
    return status


@lru_cache
def _compare_version(of_service: str) -> None:
    """Warns once."""
    if of_service != __version__:
        logger.warning(
            "the service is prorl-service %s, this client is %s: install one version on both sides",
            of_service,
            __version__,
        )


class _Health(BaseModel):
    status: Literal["ok"]


def _rollouts(raw: bytes) -> list[Rollout]:
    return Rollouts.model_validate_json(raw).rollouts


def _problems(raw: bytes) -> list[TaskProblem]:
    return TaskProblems.model_validate_json(raw).problems


def _backends(raw: bytes) -> list[BackendStatus]:
    return Backends.model_validate_json(raw).backends


def submit(groups: Sequence[Group], invalid: Invalid) -> Request[list[Rollout]]:
    body = SubmitRequest(groups=list(groups), invalid=invalid)
    headers, spread = parent_headers(), Submission(groups, invalid)
    return Request("POST", "/v1/rollouts", _rollouts, body, headers=headers, spread=spread)


def check_tasks(
    tasks: Sequence[Mapping[str, Any]], sampling: Sampling
) -> Request[list[TaskProblem]]:
    body = TaskChecks(tasks=[dict(one) for one in tasks], sampling=sampling)
    spread = Everywhere(merging.task_problems)
    return Request("POST", "/v1/tasks/check", _problems, body, spread=spread)


def get(rollout_id: str, wait_s: float, shelf: bool) -> Request[Rollout]:
    params: dict[str, Any] = {"wait_s": wait_s}
    if not shelf:
        params["shelf"] = False
    return Request(
        "GET",
        f"/v1/rollouts/{rollout_id}",
        Rollout.model_validate_json,
        params=params,
        timeout_s=wait_s + IDLE_TIMEOUT_S,
    )


def stream(
    rollout_ids: Iterable[str], timeout_s: float, form: StreamForm = StreamForm.WHOLE
) -> Request[Rollout]:
    """The request's `answer` parses one line of the stream; see `Reception`."""
    ids = StreamRequest(rollout_ids=list(rollout_ids), form=form)
    line = Rollout.model_validate_json
    return Request("POST", "/v1/rollouts/stream", line, ids, timeout_s=timeout_s)


def cancel(rollout_ids: Sequence[str]) -> Request[list[Rollout]]:
    ids = RolloutIds(rollout_ids=list(rollout_ids))
    spread = ByGroup(ids.rollout_ids, group_id_of, cancel, merging.rollouts)
    return Request("POST", "/v1/rollouts/cancel", _rollouts, ids, spread=spread)


def gateway(rollout_id: str, wait_s: float) -> Request[GatewayAccess]:
    path = f"/v1/rollouts/{quote(rollout_id, safe='')}/gateway"
    answer = GatewayAccess.model_validate_json
    idle_s, spread = wait_s + IDLE_TIMEOUT_S, AtOne(group_id_of(rollout_id))
    return Request("GET", path, answer, params={"wait_s": wait_s}, timeout_s=idle_s, spread=spread)


def end_gateway(rollout_id: str) -> Request[None]:
    path = f"/v1/rollouts/{quote(rollout_id, safe='')}/gateway/end"
    return Request("POST", path, lambda _: None, spread=AtOne(group_id_of(rollout_id)))


def acknowledge(group_ids: Sequence[str]) -> Request[None]:
    ids = GroupIds(group_ids=list(group_ids))
    spread = ByGroup(ids.group_ids, str, acknowledge, merging.nothing_of, forgets=True)
    return Request("POST", "/v1/groups/acknowledge", lambda _: None, ids, spread=spread)


def add_backend(
    url: str,
    tokenizer: str | None,
    api_key: str | None,
    lease_s: float | None,
    max_calls: int | None,
    policy_version: int | None,
    owner: str | None,
) -> Request[BackendStatus]:
    spec = BackendSpec(
        url=url,
        tokenizer=tokenizer,
        api_key=api_key,
        lease_s=lease_s,
        max_calls=max_calls,
        policy_version=policy_version,
        owner=owner,
    )
    answer, key = BackendStatus.model_validate_json, engine_key(url)
    return Request("POST", "/v1/backends", answer, spec, spread=AtEngine(key, is_new=True))


def put_backends(owner: str, backends: Sequence[BackendSpec]) -> Request[list[BackendStatus]]:
    body = OwnedBackends(owner=owner, backends=list(backends))
    return Request("PUT", "/v1/backends", _backends, body, spread=ByEngine(owner, backends))


def remove_backend(backend_id: str) -> Request[BackendStatus]:
    answer, spread = BackendStatus.model_validate_json, AtEngine(engine_key(backend_id))
    return Request("DELETE", f"/v1/backends/{backend_id}", answer, spread=spread)


def weights_terms(query: WeightsQuery) -> Request[WeightsTerms]:
    """A trainer broadcasts to the engines of one front only, so several are asked without NCCL."""
    answer = WeightsTerms.model_validate_json
    of_several = query.model_dump() | {"nccl": False}
    each = Request("GET", "/v1/weights", answer, params=of_several)
    spread = Everywhere(merging.weights_terms, each)
    return Request("GET", "/v1/weights", answer, params=query.model_dump(), spread=spread)


def claim_policy(claim: PolicyClaim) -> Request[PolicyLease]:
    answer, spread = PolicyLease.model_validate_json, Everywhere(merging.first_of)
    return Request("POST", "/v1/policy", answer, claim, spread=spread)


RELEASE_POLICY: Request[None] = Request(
    "POST", "/v1/policy/release", lambda _: None, spread=Everywhere(merging.first_of)
)


def open_nccl_group(init_info: dict[str, Any]) -> Request[NcclGroupStatus]:
    spec = NcclGroupSpec(init_info=init_info)
    status = NcclGroupStatus.model_validate_json
    return Request("POST", "/v1/weights/group", status, spec, timeout_s=WEIGHTS_TIMEOUT_S)


def broadcast_weights(
    group: str, update_info: dict[str, Any], after: int
) -> Request[WeightsReport]:
    spec = BroadcastSpec(group=group, update_info=update_info, after=after)
    report = WeightsReport.model_validate_json
    return Request("POST", "/v1/weights/broadcast", report, spec, timeout_s=WEIGHTS_TIMEOUT_S)


def load_weights(path: str, after: int) -> Request[WeightsReport]:
    weights = WeightsAt(path=path, after=after)
    return Request(
        "POST",
        "/v1/weights",
        WeightsReport.model_validate_json,
        weights,
        timeout_s=WEIGHTS_TIMEOUT_S,
        spread=Everywhere(merging.weights_report),
    )


def stream_weights(after: int) -> Request[WeightsReport]:
    return Request(
        "PUT",
        "/v1/weights",
        WeightsReport.model_validate_json,
        params=Push(after=after).model_dump(),
        timeout_s=WEIGHTS_TIMEOUT_S,
        spread=Everywhere(merging.weights_report),
    )


def _sampler(
    method: str,
    path: str,
    spread: Spread,
    body: BaseModel | None = None,
    headers: dict[str, str] | None = None,
) -> Request[SamplerStatus]:
    answer, headers = SamplerStatus.model_validate_json, headers or {}
    return Request(method, f"/v1/samplers/{path}", answer, body, headers=headers, spread=spread)


def create_sampler(sampler_id: str, spec: SamplerSpec) -> Request[SamplerStatus]:
    return _sampler("PUT", sampler_id, SamplerCreation(sampler_id, spec), spec)


def sampler(sampler_id: str, after: int, wait_s: float) -> Request[SamplerStatus]:
    return Request(
        "GET",
        f"/v1/samplers/{sampler_id}",
        SamplerStatus.model_validate_json,
        params={"after": after, "wait_s": wait_s},
        timeout_s=wait_s + IDLE_TIMEOUT_S,
        spread=Polling(sampler_id, after, wait_s),
    )


def add_candidates(
    sampler_id: str, groups: Sequence[Group], is_last: bool
) -> Request[SamplerStatus]:
    body, spread = (
        Candidates(groups=list(groups), is_last=is_last),
        Feeding(sampler_id, groups, is_last),
    )
    return _sampler("POST", f"{sampler_id}/groups", spread, body, parent_headers())


def open_draw(sampler_id: str, draw_id: str, spec: DrawSpec) -> Request[SamplerStatus]:
    spread = Drawing(sampler_id, draw_id, spec)
    return _sampler("PUT", f"{sampler_id}/draws/{draw_id}", spread, spec)


def delete_sampler(sampler_id: str) -> Request[None]:
    spread = SamplerDeletion(sampler_id)
    return Request("DELETE", f"/v1/samplers/{sampler_id}", lambda _: None, spread=spread)


BACKENDS = Request("GET", "/v1/backends", _backends, spread=Everywhere(merging.backends))
STATUS = Request("GET", "/v1/status", _status, spread=Everywhere(merging.statuses))
HEALTH = Request("GET", "/health", _Health.model_validate_json, spread=Everywhere(merging.first_of))
