"""One inference engine over HTTP: vLLM, or our reference engine, which speaks the same routes.

Everything an engine answers is checked here, so the rest of the service may trust a `Generation`.
Knows nothing of other engines, retries or health over time: the pool does, and owns connections.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, get_args

import orjson

from prorl_service.errors import BackendError, BackendLent, BackendRejected, BackendUnavailable
from prorl_service.inference.base import Generation
from prorl_service.inference.connections import Answer, Connections, Method, Unreachable
from prorl_service.inference.prompt import Prompt
from prorl_service.inference.transfer import (
    Pull,
    Push,
    Reload,
    Transfer,
    WeightDirectory,
    WeightSource,
)
from prorl_service.schemas import Sampling, StopReason

log = logging.getLogger(__name__)

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
RESUME_TIMEOUT_S = 30.0

PauseMode = Literal["abort", "wait", "keep"]


class WeightsRejected(BackendRejected):
    """The engine found the weights unfit and has not touched its own."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """`root` is where the engine found the model. `streams_weights`: it takes a file by `Push`.

    `policy_version` is None for an engine that was never given weights.
    `is_paused` outside of `load_weights` is the trace of one that failed or was cut short, unless
    the engine `is_lent`: then its owner uses it for something else, and will resume it.
    """

    model: str
    root: str
    max_model_len: int
    policy_version: int | None
    streams_weights: bool
    is_paused: bool
    is_lent: bool = False


class Backend:
    """The engine at `url`.

    Every method raises `BackendError`: `BackendUnavailable` if the engine is busy or out of reach,
    `BackendRejected` if it refuses the request itself.
    """

    def __init__(self, url: str, connections: Connections, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.api_key = api_key
        """Bearer token of every call to the engine."""
        self.backend_id = self.url.split("://", 1)[1]
        self.vocab_size = INT32_END
        """No answer may hold an id that is not below it; whoever knows the model lowers it."""
        self._connections = connections

    async def describe(self, *, timeout_s: float = 60) -> EngineInfo:
        """What is served, and by which weights."""
        async with self._budget(timeout_s):
            info: EngineInfo = await self._call("GET", "/v1/models", read=_read_models)
            # vLLM has these in its development mode only.
            with suppress(BackendRejected):
                version = await self._call("GET", "/weight_info", read=_read_version)
                info = replace(info, policy_version=version)
            with suppress(BackendRejected):
                info = await self._call("GET", "/is_paused", read=partial(_read_pause, info))
        return info

    async def is_healthy(self, *, timeout_s: float) -> bool:
        """Says that the engine's process lives; a paused engine is healthy, too."""
        try:
            async with self._budget(timeout_s):
                await self._call("GET", "/health")
        except BackendError:
            return False
        return True

    async def generate(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        session_id: str,
        stop_token_ids: Sequence[int] = (),
    ) -> Generation:
        """Waits for as long as the model talks. A cancelled call makes the engine abort it."""
        body = {
            "token_ids": orjson.Fragment(prompt.json()),
            "sampling_params": {
                "max_tokens": max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "seed": seed,
                "stop_token_ids": stop_token_ids,
                "logprobs": 0,
                "detokenize": False,
            },
        }
        route, headers = "/inference/v1/generate", {"X-Session-ID": session_id}

        def read(answer: Any) -> Generation:
            generation = _read_generation(answer, len(prompt), self.backend_id)
            _require(len(generation.token_ids) <= max_tokens, "more ids than asked for")
            _require(max(generation.token_ids, default=0) < self.vocab_size, "unknown ids")
            return generation

        generation: Generation = await self._call(
            "POST", route, json=body, headers=headers, read=read
        )
        return generation

    # --- weights --------------------------------------------------------------------------------

    async def pause(self, mode: PauseMode, *, timeout_s: float) -> None:
        """Returns when nothing is sampled any more. `keep` freezes calls, `wait` lets them end."""
        async with self._budget(timeout_s):
            await self._call("POST", f"/pause?mode={mode}")

    async def resume(self, *, timeout_s: float) -> None:
        async with self._budget(timeout_s):
            await self._call("POST", "/resume")

    async def load_weights(self, source: WeightSource, version: int, *, timeout_s: float) -> None:
        """Pauses, loads, labels with `version`, resumes; calls in flight go on with new weights.

        `timeout_s` bounds each step. Weights that the engine refuses before it touched its own
        raise `BackendRejected`, and the old ones serve on. A failure after that leaves the engine
        paused, since its tokens could not be trusted: it must be restarted. An engine found paused
        is resumed by new weights only.
        """
        before = await self.describe(timeout_s=timeout_s)
        transfer = self._transfer(source, before)
        async with self._budget(timeout_s):
            await transfer.offer()
        try:
            await self.pause("keep", timeout_s=timeout_s)
            async with self._budget(timeout_s):
                await transfer.send()
        except BaseException:
            await self._go_on_as(before)
            raise
        try:
            async with self._budget(timeout_s):
                await transfer.swap(str(version))
        except WeightsRejected:
            await self._go_on_as(before)
            raise
        except BackendError as error:
            raise BackendError(
                f"{self.url} may have lost its weights and stays paused: {error}",
                hint="restart the inference engine",
                retryable=False,
            ) from error
        await self.resume(timeout_s=timeout_s)

    def _transfer(self, source: WeightSource, engine: EngineInfo) -> Transfer:
        if isinstance(source, WeightDirectory):
            return Reload(self._call, source)
        if engine.streams_weights:
            return Push(self._call, source)
        return Pull(self._call, source, self.url)

    async def _go_on_as(self, before: EngineInfo) -> None:
        if before.is_paused:
            return
        with suppress(BackendError):  # the caller should see what went wrong first
            await self.resume(timeout_s=RESUME_TIMEOUT_S)

    # --- one call -------------------------------------------------------------------------------

    async def _call(
        self,
        method: Method,
        route: str,
        *,
        json: Any = None,
        data: BinaryIO | bytes = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
        read: Callable[[Any], Any] = lambda _: None,
    ) -> Any:
        """What `read` makes of the answer's JSON, or of None if the answer is empty."""
        if json is not None:
            data = orjson.dumps(json)
            headers = {**headers, "Content-Type": "application/json"}
        if self.api_key is not None:
            headers = {**headers, "Authorization": f"Bearer {self.api_key}"}
        url = self.url + route
        try:
            answer = await self._connections.request(method, url, headers=headers, body=data)
        except Unreachable as error:
            raise BackendUnavailable(f"{method} {url}: {error}") from error
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:  # no engine sends elsewhere
            raise self._failure(method, url, answer)
        try:
            return read(orjson.loads(answer.content) if answer.content else None)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise BackendError(f"{url} answered nonsense: {error!r}") from error

    def _failure(self, method: Method, url: str, answer: Answer) -> BackendError:
        """The error for a refusal, with the engine's reason for a POST only: none is sent before
        the host has shown by its answers to GET that it is an engine. Callers never see other
        hosts' texts."""
        kind, reason = _reason(answer.content)
        if self.api_key:
            reason = reason.replace(self.api_key, "***")
        log.debug("%s %s: %d %s", method, url, answer.status, reason)
        is_silent = method == "GET" or answer.status in SILENT_STATUSES
        text = f"{method} {url}: {answer.status} {'' if is_silent else reason}".rstrip()
        return _error(text, answer.status, kind)

    @asynccontextmanager
    async def _budget(self, timeout_s: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            message = f"{self.url} did not answer within {timeout_s:g} s"
            raise BackendUnavailable(message) from None


# What reads an answer raises one of the errors that `_call` expects for any that is not sound.


def _read_models(answer: Any) -> EngineInfo:
    model = answer["data"][0]
    name, root, max_model_len = model["id"], model["root"], model["max_model_len"]
    _require(type(name) is str and type(root) is str, "a model's id or root is no text")
    _require(type(max_model_len) is int, "max_model_len is no integer")
    return EngineInfo(
        model=name,
        root=root,
        max_model_len=max_model_len,
        policy_version=None,
        streams_weights=model["owned_by"] == REFERENCE_ENGINE,
        is_paused=False,
    )


def _read_pause(info: EngineInfo, answer: Any) -> EngineInfo:
    """Only a gateway says that it is lent."""
    return replace(info, is_paused=answer["is_paused"], is_lent=answer.get("is_lent", False))


def _read_version(answer: Any) -> int | None:
    return _policy_version(answer["weight_version"])


def _policy_version(label: str) -> int | None:
    if label == NEVER_UPDATED:
        return None
    _require(label.isdecimal(), "the version of the weights is no number")
    version = int(label)
    _require(0 <= version < INT32_END, f"policy version {version}")
    return version


def _read_generation(answer: Any, prompt_length: int, backend_id: str) -> Generation:
    usage, choice = answer["usage"], answer["choices"][0]
    token_ids, finish_reason = choice["token_ids"], choice["finish_reason"]
    entries = choice["logprobs"]["content"] if token_ids else []
    logprobs = [float(entry["logprob"]) for entry in entries]
    versions = _expand(choice["weight_versions"] or [], len(token_ids))
    cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    _require(usage["prompt_tokens"] == prompt_length, f"usage {usage} of {prompt_length} ids")
    _require(finish_reason in get_args(StopReason), f"finish_reason {finish_reason!r}")
    _require(token_ids or finish_reason == "abort", "no ids")
    # Thousands of ids: no loop in Python.
    _require(set(map(type, token_ids)) <= {int}, "ids that are none")
    _require(min(token_ids, default=0) >= 0, "ids below 0")
    _require(len(logprobs) == len(token_ids), f"{len(logprobs)} logprobs, {len(token_ids)} ids")
    _require(type(cached_tokens) is int, f"cached_tokens {cached_tokens!r}")
    least, most = min(logprobs, default=0.0), max(logprobs, default=0.0)
    _require(least > UNLIKELY and most < ROUNDING, "impossible logprobs")
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
        _require(start == len(versions) and start < end <= length, f"weight_versions {spans}")
        versions += [_policy_version(span["version"]) or 0] * (end - start)
    _require(len(versions) == length, f"weight_versions {spans} of {length} ids")
    return versions


def _require(condition: object, problem: str) -> None:
    if not condition:
        raise ValueError(problem)


def _reason(content: bytes) -> tuple[str, str]:
    """Type and message of an error; "" if it is not an engine's."""
    try:
        error = orjson.loads(content)["error"]
        return str(error["type"]), str(error["message"])[:MAX_REASON_CHARS]
    except (ValueError, KeyError, TypeError):
        return "", ""


def _error(text: str, status: int, kind: str) -> BackendError:
    if kind == WEIGHTS_REJECTED:
        return WeightsRejected(text)
    if kind == LENT:
        return BackendLent(text)
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        return BackendUnavailable(text)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return BackendError(text)
    return BackendRejected(text, hint=HINTS.get(status, ""))
