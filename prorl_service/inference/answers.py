"""What engines answer, checked, so that the rest of the service may trust it.

Functions that read an answer raise `KeyError`, `IndexError`, `TypeError`, `ValueError` or
`AttributeError` for one that is not sound. Makes no calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Literal, get_args

import orjson

from prorl_service.errors import BackendError, BackendLent, BackendRejected, BackendUnavailable
from prorl_service.inference.base import Generation
from prorl_service.inference.releases import Release
from prorl_service.inference.transfer.ways import ADAPTER_PREFIX, NotOffered
from prorl_service.schemas import StopReason

PauseMode = Literal["abort", "wait", "keep"]

REFERENCE_ENGINE = "prorl-reference-engine"
"""The owner that our engine gives for its model."""

WEIGHTS_REJECTED = "WeightsRejected"
"""Type of the error with which our engine refuses weights before it touched any."""

LENT = "EngineLent"
"""Type of the error with which an engine gives calls back while its owner needs it."""

NEVER_UPDATED = "default"
"""Version label of an engine that serves the weights it was started with."""

HINTS: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "give the engine's key: `--backend-key-file`, PRORL_BACKEND_KEY, or "
    "`api_key` where it is added; if it is no inference engine, correct the URL",
    HTTPStatus.FORBIDDEN: "start vLLM with --enable-scale-out; call `prorl engine` localhost, or "
    "start it with --allow-host",
    HTTPStatus.NOT_FOUND: "weight updates need vLLM with VLLM_SERVER_DEV_MODE=1",
}
SILENT_STATUSES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Statuses whose text is never shown: it may repeat the key."""
MAX_REASON_CHARS = 1000
UNLIKELY = -9999.0
"""What an engine reports for a logprob that is not a finite number."""
ROUNDING = 1e-3
INT32_END = 2**31
"""Trajectories keep ids and versions as int32."""


class WeightsRejected(BackendRejected):
    """The engine found the weights unfit and has not touched its own."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """`root` is where the engine found the model. `is_ours`: it is the reference engine.
    `dtype` is None where another route has it. `adapters`: those from us, directories by name.

    `policy_version` is None for an engine that was never given weights.
    `is_paused` outside of `load_weights` is the trace of one that failed or was cut short, unless
    the engine `is_lent`: then its owner uses it for something else, and will resume it.
    `release` is vLLM's; None: another engine, or a build without a number.
    """

    model: str
    root: str
    max_model_len: int
    policy_version: int | None
    is_ours: bool
    is_paused: bool
    is_lent: bool = False
    dtype: str | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)
    release: Release | None = None

    @property
    def has_first_base(self) -> bool:
        """Whether the weights below any adapter are those that it was started with."""
        return self.policy_version is None or bool(self.adapters)


def read_models(answer: Any) -> EngineInfo:
    model = answer["data"][0]
    name, root, max_model_len = model["id"], model["root"], model["max_model_len"]
    require(type(name) is str and type(root) is str, "a model's id or root is no text")
    require(type(max_model_len) is int, "max_model_len is no integer")
    return EngineInfo(
        model=name,
        root=root,
        max_model_len=max_model_len,
        policy_version=None,
        is_ours=model["owned_by"] == REFERENCE_ENGINE,
        is_paused=False,
        dtype=model.get("dtype"),
        adapters={
            card["id"]: card["root"]
            for card in answer["data"][1:]
            if card["id"].startswith(ADAPTER_PREFIX)
        },
    )


def read_pause(info: EngineInfo, answer: Any) -> EngineInfo:
    """Only a gateway says that it is lent."""
    return replace(info, is_paused=answer["is_paused"], is_lent=answer.get("is_lent", False))


def read_version(answer: Any) -> int | None:
    return _policy_version(answer["weight_version"])


def _policy_version(label: str) -> int | None:
    if label == NEVER_UPDATED:
        return None
    require(label.isdecimal(), "the version of the weights is no number")
    version = int(label)
    require(0 <= version < INT32_END, f"policy version {version}")
    return version


def read_generation(answer: Any, prompt_length: int, backend_id: str) -> Generation:
    usage, choice = answer["usage"], answer["choices"][0]
    token_ids, finish_reason = choice["token_ids"], choice["finish_reason"]
    entries = choice["logprobs"]["content"] if token_ids else []
    logprobs = [float(entry["logprob"]) for entry in entries]
    versions = _expand(choice["weight_versions"] or [], len(token_ids))
    cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    require(usage["prompt_tokens"] == prompt_length, f"usage {usage} of {prompt_length} ids")
    require(finish_reason in get_args(StopReason), f"finish_reason {finish_reason!r}")
    require(token_ids or finish_reason == "abort", "no ids")
    # Thousands of ids: no loop in Python.
    require(set(map(type, token_ids)) <= {int}, "ids that are none")
    require(min(token_ids, default=0) >= 0, "ids below 0")
    require(len(logprobs) == len(token_ids), f"{len(logprobs)} logprobs, {len(token_ids)} ids")
    require(type(cached_tokens) is int, f"cached_tokens {cached_tokens!r}")
    least, most = min(logprobs, default=0.0), max(logprobs, default=0.0)
    require(least > UNLIKELY and most < ROUNDING, "impossible logprobs")
    return Generation(
        token_ids=token_ids,
        logprobs=[min(logprob, 0.0) for logprob in logprobs] if most > 0 else logprobs,
        policy_versions=versions,
        finish_reason=finish_reason,
        cached_tokens=cached_tokens,
        backend=backend_id,
    )


def _expand(spans: list[Any], length: int) -> list[int]:
    """The version of every output token, from spans [start, end) that must leave no gap."""
    versions: list[int] = []
    for span in spans:
        start, end = span["start"], span["end"]
        require(start == len(versions) and start < end <= length, f"weight_versions {spans}")
        versions += [_policy_version(span["version"]) or 0] * (end - start)
    require(len(versions) == length, f"weight_versions {spans} of {length} ids")
    return versions


def require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def reason_of(content: bytes) -> tuple[str, str]:
    """Type and message of an error; "" if it is not an engine's."""
    try:
        error = orjson.loads(content)["error"]
        return str(error["type"]), str(error["message"])[:MAX_REASON_CHARS]
    except (ValueError, KeyError, TypeError):
        return "", ""


def error_of(text: str, status: int, kind: str) -> BackendError:
    if kind == WEIGHTS_REJECTED:
        return WeightsRejected(text)
    if kind == LENT:
        return BackendLent(text)
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        return BackendUnavailable(text)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return BackendError(text)
    is_offered = status not in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
    return (BackendRejected if is_offered else NotOffered)(text, hint=HINTS.get(status, ""))
