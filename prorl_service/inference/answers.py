"""Validation of engines' answers, so that the rest of the service can trust them.

Functions that read an answer raise `KeyError`, `IndexError`, `TypeError`, `ValueError` or
`AttributeError` if it is invalid. Makes no calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Literal, get_args

import orjson

from prorl_service.errors import (
    BackendError,
    BackendLent,
    BackendRejected,
    BackendUnavailable,
    WeightsRejected,
)
from prorl_service.inference.base import Generation
from prorl_service.inference.releases import Release
from prorl_service.inference.transfer.ways import ADAPTER_PREFIX, NotOffered
from prorl_service.schemas import StopReason

PauseMode = Literal["abort", "wait", "keep"]

REFERENCE_ENGINE = "prorl-reference-engine"
"""Owner that the reference engine reports for its model."""

WEIGHTS_REJECTED = "WeightsRejected"
"""Error type with which the reference engine refuses weights before it has touched its own."""

LENT = "EngineLent"
"""Error type with which an engine hands calls back while its owner needs it."""

NEVER_UPDATED = "default"
"""Version label of an engine that serves the weights it was started with."""

HINTS: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "pass the engine's key: `--backend-key-file`, PRORL_BACKEND_KEY, or "
    "`api_key` when adding it; if it is not an inference engine, correct the URL",
    HTTPStatus.FORBIDDEN: "start vLLM with --enable-scale-out; address `prorl engine` as "
    "localhost, or start it with --allow-host",
    HTTPStatus.NOT_FOUND: "weight updates need vLLM with VLLM_SERVER_DEV_MODE=1",
}
SILENT_STATUSES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Statuses whose text is never shown: it may repeat the key."""
MAX_REASON_CHARS = 1000
UNLIKELY = -9999.0
"""Logprob that an engine reports in place of one that is not finite."""
ROUNDING = 1e-3
INT32_END = 2**31
"""Bound of ids and versions, which trajectories keep as int32."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine's own description.

    `root`: where it found the model. `is_ours`: it is the reference engine. `dtype`,
    `logprobs_mode`: None if another route may report it. `adapters`: directories of our adapters,
    keyed by name.
    `policy_version`: None for an engine that was never given weights. `is_paused`: outside of
    `load_weights`, the trace of one that failed or was cut short, unless the engine `is_lent`: then
    its owner uses it for something else, and will resume it. `release`: vLLM's; None for another
    engine, or a build without a number.
    """

    model: str
    root: str
    max_model_len: int
    policy_version: int | None
    is_ours: bool
    is_paused: bool
    is_lent: bool = False
    dtype: str | None = None
    logprobs_mode: str | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)
    release: Release | None = None

    @property
    def has_first_base(self) -> bool:
        """True if the weights below any adapter are those that the engine was started with."""
        return self.policy_version is None or bool(self.adapters)


def read_models(answer: Any) -> EngineInfo:
    model = answer["data"][0]
    name, root, max_model_len = model["id"], model["root"], model["max_model_len"]
    require(type(name) is str and type(root) is str, "a model's id or root is not a string")
    require(type(max_model_len) is int, "max_model_len is not an integer")
    return EngineInfo(
        model=name,
        root=root,
        max_model_len=max_model_len,
        policy_version=None,
        is_ours=model["owned_by"] == REFERENCE_ENGINE,
        is_paused=False,
        dtype=model.get("dtype"),
        logprobs_mode=model.get("logprobs_mode"),
        adapters={
            card["id"]: card["root"]
            for card in answer["data"][1:]
            if card["id"].startswith(ADAPTER_PREFIX)
        },
    )


def read_pause(info: EngineInfo, answer: Any) -> EngineInfo:
    """Adds the state of pauses and loans; only a gateway reports loans."""
    return replace(info, is_paused=answer["is_paused"], is_lent=answer.get("is_lent", False))


def read_version(answer: Any) -> int | None:
    return _policy_version(answer["weight_version"])


def _policy_version(label: str) -> int | None:
    if label == NEVER_UPDATED:
        return None
    require(label.isdecimal(), "the version of the weights is not a number")
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
    require(usage["prompt_tokens"] == prompt_length, f"usage {usage} for {prompt_length} ids")
    require(finish_reason in get_args(StopReason), f"finish_reason {finish_reason!r}")
    require(token_ids or finish_reason == "abort", "no ids")
    # Thousands of ids: no loop in Python.
    require(set(map(type, token_ids)) <= {int}, "ids that are not integers")
    require(min(token_ids, default=0) >= 0, "negative ids")
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


def read_logprobs(answer: Any) -> list[float]:
    """Returns what may be something else, such as logits."""
    return [float(entry["logprob"]) for entry in answer["choices"][0]["logprobs"]["content"]]


def _expand(spans: list[Any], length: int) -> list[int]:
    """Returns the version of every output token, from spans [start, end) that must leave no gap."""
    versions: list[int] = []
    for span in spans:
        start, end = span["start"], span["end"]
        require(start == len(versions) and start < end <= length, f"weight_versions {spans}")
        versions += [_policy_version(span["version"]) or 0] * (end - start)
    require(len(versions) == length, f"weight_versions {spans} for {length} ids")
    return versions


def require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def reason_of(content: bytes) -> tuple[str, str]:
    """Returns an error's type and message; "" for both if it is not an engine's."""
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
