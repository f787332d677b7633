"""Language models of the operator behind an OpenAI-compatible endpoint: texts in, a text out.

Retries what may pass, within bounds, and waits as `Retry-After` says. A call that fails gives no
reply: that is raised, blamed on the evaluator. Knows nothing of what is asked.
"""

import asyncio
import logging
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self, TypeVar

import httpx
import orjson

from prorl_service.errors import EvaluatorError, ProRLError

log = logging.getLogger(__name__)

T = TypeVar("T")
Messages = Sequence[Mapping[str, str]]

ATTEMPTS = 5
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
CALL_TIMEOUT_S = 90.0
MAX_REPLY_BYTES = 1024 * 1024

TRANSIENT = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}


@dataclass(frozen=True, slots=True)
class ChatModelConfig:
    role: str
    """What the models are for, as errors call it and options begin."""
    url: str
    """Base URL with the version: `https://host/v1`."""
    models: Sequence[str]
    """Names of the models there."""
    key: str | None = field(default=None, repr=False)
    max_calls: int = 16
    """Maximum number of calls in flight; more wait."""
    budget: int | None = None
    """Maximum number of calls in all; None: no limit."""

    def __post_init__(self) -> None:
        """Raises `ProRLError`."""
        role = self.role
        if not _is_address(self.url) or not self.models or not all(map(str.strip, self.models)):
            raise ProRLError(
                f"a {role} needs a URL and the name of a model",
                hint=f"`--{role}-url http://host:port/v1 --{role}-model NAME`",
            )
        if len(set(self.models)) < len(self.models):
            raise ProRLError(f"two {role}s have one model", hint=f"name each --{role}-model once")


class NoReply(Exception):
    """Failure after which another attempt may succeed, `after_s` seconds later at the earliest."""

    def __init__(self, problem: str, after_s: float = 0.0) -> None:
        super().__init__(problem)
        self.after_s = after_s


class ChatModel:
    """Client of the models, shared by all rollouts. Use as an async context manager."""

    def __init__(self, config: ChatModelConfig) -> None:
        self.config = config
        self.calls = 0
        """Number of calls so far."""
        self._slots = asyncio.Semaphore(config.max_calls)
        self._resources = AsyncExitStack()

    async def __aenter__(self) -> Self:
        headers = {"Content-Type": "application/json"}
        if self.config.key is not None:
            headers["Authorization"] = f"Bearer {self.config.key}"
        self._http = await self._resources.enter_async_context(
            httpx.AsyncClient(
                headers=headers,
                timeout=None,  # `_reply` limits a call as a whole
                limits=httpx.Limits(max_connections=None),  # `max_calls` is the limit
            )
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._resources.aclose()

    async def ask(
        self,
        messages: Callable[[], Messages],
        read: Callable[[str], T],
        *,
        max_tokens: int,
        budget_s: float,
        model: str | None = None,
    ) -> T:
        """Returns what `read` makes of the reply of `model`, by default the first; it raises
        `NoReply` for one that is of no use. `messages` makes those of one attempt. `budget_s`
        bounds all attempts, waiting included. Raises `EvaluatorError`, retryable unless the
        endpoint refuses the request itself, or the calls are used up."""
        model = model or self.config.models[0]
        try:
            async with asyncio.timeout(budget_s):
                return await self._asked(model, messages, read, max_tokens)
        except TimeoutError:
            raise EvaluatorError(
                f"the {self.config.role} gave no reply within {budget_s:g} s", retryable=True
            ) from None

    async def _asked(
        self,
        model: str,
        messages: Callable[[], Messages],
        read: Callable[[str], T],
        max_tokens: int,
    ) -> T:
        delay_s, problem, role = FIRST_DELAY_S, "", self.config.role
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)
            try:
                async with self._slots:
                    reply = await self._reply(model, messages(), max_tokens)
                return read(reply)
            except NoReply as error:
                problem = str(error)
                delay_s = max(delay_s, min(error.after_s, LONGEST_DELAY_S))
                log.warning("%s: attempt %d of %d: %s", role, attempt + 1, ATTEMPTS, problem)
        raise EvaluatorError(
            f"the {role} gave no reply in {ATTEMPTS} attempts: {problem}", retryable=True
        )

    async def _reply(self, model: str, messages: Messages, max_tokens: int) -> str:
        self._count()
        body = {
            "model": model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": max_tokens,
        }
        url = f"{self.config.url.rstrip('/')}/chat/completions"
        try:
            async with (
                asyncio.timeout(CALL_TIMEOUT_S),
                self._http.stream("POST", url, content=orjson.dumps(body)) as response,
            ):
                self._check(response)
                content = await _read(response)
        except (httpx.HTTPError, TimeoutError) as error:
            raise NoReply(f"{type(error).__name__}: {error}") from error
        return _text_of(content)

    def _count(self) -> None:
        budget, role = self.config.budget, self.config.role
        if budget is not None and self.calls >= budget:
            raise EvaluatorError(
                f"the {role}'s budget of {budget} calls is used up",
                hint=f"start the service again with a larger --{role}-budget",
            )
        self.calls += 1

    def _check(self, response: httpx.Response) -> None:
        """Raises for an error status, without the body, in which endpoints like to repeat keys."""
        status, role = response.status_code, self.config.role
        if status == HTTPStatus.OK:
            return
        if status in TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise NoReply(f"it answered {status}", _retry_after_s(response.headers))
        raise EvaluatorError(
            f"the {role} refused the request: it answered {status}",
            hint=f"check --{role}-url, --{role}-model and PRORL_{role.upper()}_KEY",
        )


def _is_address(url: str) -> bool:
    try:
        httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return re.fullmatch(r"https?://[^\s?#]+", url) is not None


async def _read(response: httpx.Response) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > MAX_REPLY_BYTES:
            raise NoReply(f"its reply has more than {MAX_REPLY_BYTES} bytes")
    return bytes(content)


def _text_of(content: bytes) -> str:
    try:
        choice: Any = orjson.loads(content)["choices"][0]
        text, reason = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NoReply("its reply is not a chat completion") from None
    if not isinstance(text, str) or reason == "length":
        raise NoReply("its reply has no text, or was cut off")
    return text


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "0")))
    except ValueError:  # a date
        return 0.0
