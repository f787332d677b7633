"""The calls of the service's HTTP interface, as data, and what every client does with an answer.

Does no input or output and knows no event loop: `client` adds how a request is sent and waited for.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from prorl_service import __version__
from prorl_service.errors import ProRLError
from prorl_service.schemas import (
    Backends,
    BackendSpec,
    BackendStatus,
    Blame,
    BroadcastSpec,
    ErrorInfo,
    ErrorResponse,
    Group,
    GroupIds,
    Invalid,
    NcclGroupSpec,
    NcclGroupStatus,
    Rollout,
    RolloutIds,
    Rollouts,
    ServiceStatus,
    SubmitRequest,
    WeightsAt,
    WeightsQuery,
    WeightsReport,
    WeightsTerms,
)
from prorl_service.schemas.sampling import Candidates, DrawSpec, SamplerSpec, SamplerStatus

CONNECT_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 60.0
"""Silence after which a connection counts as broken; streams send keep-alives more often."""
WEIGHTS_TIMEOUT_S = 900.0
FIRST_DELAY_S, LAST_DELAY_S = 0.1, 5.0
FIRST_WARNING_S, NEXT_WARNING_S = 10.0, 60.0
"""Failure after which a call that is tried again is reported, and the interval of later reports."""

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class ServiceCallError(ProRLError):
    """A call that failed for good. `http_status` is None when there was no answer at all."""

    def __init__(self, call: str, info: ErrorInfo, http_status: int | None) -> None:
        status = "" if http_status is None else f"{http_status} "
        problems = [f"{problem.field}: {problem.message}" for problem in info.fields]
        details = [line for line in (*problems, info.hint) if line and line not in info.message]
        super().__init__(
            "\n  ".join([f"{call}: {status}{info.kind}: {info.message}", *details]),
            hint=info.hint,
            retryable=info.retryable,
            fields=info.fields,
        )
        self.blame = info.blame
        self.http_status = http_status
        self.error = info


class WaitTimeout(ServiceCallError, TimeoutError):
    """Some rollouts did not end in time. `pending` are their ids; they are still running."""

    def __init__(self, pending: Sequence[str], timeout_s: float) -> None:
        ProRLError.__init__(
            self,
            f"{len(pending)} rollouts did not end within {timeout_s:g} s, first {pending[0]}",
            hint="wait longer, or cancel them",
        )
        self.pending = list(pending)
        self.http_status = None
        self.error = self.info()


# --- the calls, as data -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    method: str
    path: str
    answer: Callable[[bytes], Answer]
    body: BaseModel | None = None
    params: dict[str, str | float] = field(default_factory=dict)
    timeout_s: float | None = None
    """Longest silence of the service; None: the client's `idle_s`."""

    def request(
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
            headers=headers,
            timeout=timeout,
        )

    def parse(self, response: httpx.Response) -> Answer:
        raise_for_status(response)
        return self.answer(response.content)


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


def submit(groups: Sequence[Group], invalid: Invalid) -> Call[list[Rollout]]:
    body = SubmitRequest(groups=list(groups), invalid=invalid)
    return Call("POST", "/v1/rollouts", _rollouts, body)


def get(rollout_id: str, wait_s: float) -> Call[Rollout]:
    return Call(
        "GET",
        f"/v1/rollouts/{rollout_id}",
        Rollout.model_validate_json,
        params={"wait_s": wait_s},
        timeout_s=wait_s + IDLE_TIMEOUT_S,
    )


def stream(rollout_ids: Iterable[str], timeout_s: float) -> Call[Rollout]:
    """Its answer is one line; see `Reception`."""
    ids = RolloutIds(rollout_ids=list(rollout_ids))
    line = Rollout.model_validate_json
    return Call("POST", "/v1/rollouts/stream", line, ids, timeout_s=timeout_s)


def cancel(rollout_ids: Iterable[str]) -> Call[list[Rollout]]:
    ids = RolloutIds(rollout_ids=list(rollout_ids))
    return Call("POST", "/v1/rollouts/cancel", _rollouts, ids)


def acknowledge(group_ids: Iterable[str]) -> Call[None]:
    ids = GroupIds(group_ids=list(group_ids))
    return Call("POST", "/v1/groups/acknowledge", lambda _: None, ids)


def add_backend(
    url: str,
    tokenizer: str | None,
    api_key: str | None,
    lease_s: float | None,
    max_calls: int | None,
    policy_version: int | None,
    owner: str | None,
) -> Call[BackendStatus]:
    spec = BackendSpec(
        url=url,
        tokenizer=tokenizer,
        api_key=api_key,
        lease_s=lease_s,
        max_calls=max_calls,
        policy_version=policy_version,
        owner=owner,
    )
    return Call("POST", "/v1/backends", BackendStatus.model_validate_json, spec)


def remove_backend(backend_id: str) -> Call[BackendStatus]:
    return Call("DELETE", f"/v1/backends/{backend_id}", BackendStatus.model_validate_json)


def weights_terms(query: WeightsQuery) -> Call[WeightsTerms]:
    params = query.model_dump()
    return Call("GET", "/v1/weights", WeightsTerms.model_validate_json, params=params)


def open_nccl_group(init_info: dict[str, Any]) -> Call[NcclGroupStatus]:
    spec = NcclGroupSpec(init_info=init_info)
    status = NcclGroupStatus.model_validate_json
    return Call("POST", "/v1/weights/group", status, spec, timeout_s=WEIGHTS_TIMEOUT_S)


def broadcast_weights(
    group: str, update_info: dict[str, Any], version: int, rewind: bool
) -> Call[WeightsReport]:
    spec = BroadcastSpec(group=group, update_info=update_info, version=version, rewind=rewind)
    report = WeightsReport.model_validate_json
    return Call("POST", "/v1/weights/broadcast", report, spec, timeout_s=WEIGHTS_TIMEOUT_S)


def load_weights(path: str, version: int, rewind: bool) -> Call[WeightsReport]:
    weights = WeightsAt(path=path, version=version, rewind=rewind)
    report = WeightsReport.model_validate_json
    return Call("POST", "/v1/weights", report, weights, timeout_s=WEIGHTS_TIMEOUT_S)


def stream_weights(version: int, rewind: bool) -> Call[WeightsReport]:
    report = WeightsReport.model_validate_json
    params: dict[str, str | float] = {"version": version}
    if rewind:
        params["rewind"] = True
    return Call("PUT", "/v1/weights", report, params=params, timeout_s=WEIGHTS_TIMEOUT_S)


def _sampler(method: str, path: str, body: BaseModel | None = None) -> Call[SamplerStatus]:
    return Call(method, f"/v1/samplers/{path}", SamplerStatus.model_validate_json, body)


def create_sampler(sampler_id: str, spec: SamplerSpec) -> Call[SamplerStatus]:
    return _sampler("PUT", sampler_id, spec)


def sampler(sampler_id: str, after: int, wait_s: float) -> Call[SamplerStatus]:
    return Call(
        "GET",
        f"/v1/samplers/{sampler_id}",
        SamplerStatus.model_validate_json,
        params={"after": after, "wait_s": wait_s},
        timeout_s=wait_s + IDLE_TIMEOUT_S,
    )


def add_candidates(sampler_id: str, groups: Sequence[Group], is_last: bool) -> Call[SamplerStatus]:
    body = Candidates(groups=list(groups), is_last=is_last)
    return _sampler("POST", f"{sampler_id}/groups", body)


def open_draw(sampler_id: str, draw_id: str, spec: DrawSpec) -> Call[SamplerStatus]:
    return _sampler("PUT", f"{sampler_id}/draws/{draw_id}", spec)


def delete_sampler(sampler_id: str) -> Call[None]:
    return Call("DELETE", f"/v1/samplers/{sampler_id}", lambda _: None)


BACKENDS = Call("GET", "/v1/backends", lambda raw: Backends.model_validate_json(raw).backends)
STATUS = Call("GET", "/v1/status", _status)
HEALTH = Call("GET", "/health", _Health.model_validate_json)


# --- what both clients do with an answer --------------------------------------------------------


def _label(request: httpx.Request) -> str:
    return f"{request.method} {request.url.copy_with(query=None)}"


def raise_for_status(response: httpx.Response) -> None:
    """Expects the body of an error to have been read."""
    if response.is_error:
        raise ServiceCallError(
            _label(response.request), _error_info(response), response.status_code
        )


def _error_info(response: httpx.Response) -> ErrorInfo:
    """What the service said; a proxy in front of it may answer 502 or 503 in words of its own."""
    try:
        return ErrorResponse.model_validate_json(response.content).error
    except ValidationError:
        return ErrorInfo(
            kind=response.reason_phrase or "HTTPError",
            blame=Blame.SERVICE,
            message=response.text[:500] or "empty answer",
            hint="if this is no answer of a rollout service, correct the URL",
            retryable=response.status_code in (502, 503, 504),
        )


@contextmanager
def readable_errors(request: httpx.Request) -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        info = ErrorInfo(
            kind=type(error).__name__,
            blame=Blame.SERVICE,
            message=str(error) or "the connection broke",
            hint="check that the service runs there: `prorl serve`",
            retryable=not isinstance(error, httpx.UnsupportedProtocol),
        )
        raise ServiceCallError(_label(request), info, None) from None
    except ValidationError as error:
        info = ErrorInfo(
            kind="UnexpectedAnswer",
            blame=Blame.SERVICE,
            message=str(error),
            hint="the client and the service must be of the same version",
        )
        raise ServiceCallError(_label(request), info, None) from None


class Backoff:
    """Delays between tries, until `budget_s` has passed since the first failure in a row."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self.progress()

    def progress(self) -> None:
        self._delay_s = FIRST_DELAY_S
        self._failing_since: float | None = None

    def delay_s(self, error: ServiceCallError) -> float:
        """Seconds to wait before the next try; raises `error` when there is to be none."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since, self._warn_at = now, now + FIRST_WARNING_S
        left_s = self._failing_since + self._budget_s - now
        if not error.retryable or self._delay_s > left_s:
            raise error
        if now >= self._warn_at:
            self._warn_at = now + NEXT_WARNING_S
            problem, failing_s = str(error).partition("\n")[0], now - self._failing_since
            logger.warning("no success for %.0f s, %.0f s left: %s", failing_s, left_s, problem)
        delay_s = self._delay_s * random.uniform(0.5, 1)
        self._delay_s = min(2 * self._delay_s, LAST_DELAY_S)
        return delay_s


class Reception:
    """The rollouts of one stream that are still to come, over as many connections as it takes."""

    def __init__(
        self, rollout_ids: Iterable[str], timeout_s: float, retry_s: float, idle_s: float
    ) -> None:
        self.pending = dict.fromkeys(rollout_ids)
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._deadline = time.monotonic() + timeout_s
        self._backoff = Backoff(retry_s)
        self._partial_line = b""

    def call(self) -> Call[Rollout]:
        self._partial_line = b""
        return stream(self.pending, min(self._idle_s, self._seconds_left()))

    def feed(self, chunk: bytes) -> Iterator[Rollout]:
        """Lines end at newline bytes only: JSON text may hold what `str.splitlines` splits at."""
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        for line in filter(bytes.strip, lines):
            rollout = Rollout.model_validate_json(line)
            if rollout.rollout_id in self.pending:
                del self.pending[rollout.rollout_id]
                yield rollout
        self._backoff.progress()
        if self.pending:
            self._seconds_left()

    def closed(self) -> None:
        if self.pending:
            missing = f"the stream ended with {len(self.pending)} rollouts still to come"
            raise httpx.RemoteProtocolError(missing)

    def delay_s(self, error: ServiceCallError) -> float:
        left_s = self._seconds_left()
        return min(self._backoff.delay_s(error), left_s)

    def _seconds_left(self) -> float:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise WaitTimeout(list(self.pending), self._timeout_s)
        return left_s
