"""The endpoint of the judges: calls over HTTP, their retries, and the bounds on them.

Knows nothing of what is asked. A call that fails gives no reply: that is raised, and never a score.
"""

import asyncio
import logging
import random
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex
from typing import Any, Self, TypeVar

import httpx
import orjson

from prorl_service.errors import EvaluatorError, ProRLError

log = logging.getLogger(__name__)
T = TypeVar("T")

KEY_VARIABLE = "PRORL_JUDGE_KEY"
ATTEMPTS = 5
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
CALL_TIMEOUT_S = 90.0
MAX_TOKENS = 4096
"""Maximum length of a reply: room to think before the verdict."""
MAX_REPLY_BYTES = 1024 * 1024

TRANSIENT = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    url: str
    """Base URL with the version: `https://host/v1`."""
    models: Sequence[str]
    """Names of the judges' models there."""
    key: str | None = field(default=None, repr=False)
    cache: Path | None = None
    """SQLite file; None keeps verdicts in memory only."""
    max_calls: int = 16
    """Maximum number of calls in flight; more wait."""
    budget: int | None = None
    """Maximum number of calls in all; None: no limit."""

    def __post_init__(self) -> None:
        """Raises `ProRLError`."""
        if not _is_address(self.url) or not self.models or not all(map(str.strip, self.models)):
            raise ProRLError(
                "a judge needs a URL and the name of a model",
                hint="`--judge-url http://host:port/v1 --judge-model NAME`",
            )
        if len(set(self.models)) < len(self.models):
            raise ProRLError("two judges have one model", hint="name each --judge-model once")


class Unreadable(Exception):
    """A reply without a verdict, after which another attempt may succeed."""


class _Transient(Unreadable):
    """Failure after which another attempt may succeed, `after_s` seconds later at the earliest."""

    def __init__(self, problem: str, after_s: float) -> None:
        super().__init__(problem)
        self.after_s = after_s


class JudgeEndpoint:
    """Client of all judges. Use as an async context manager."""

    def __init__(self, config: JudgeConfig) -> None:
        self.calls = 0
        """Number of calls so far."""
        self._config = config
        self._slots = asyncio.Semaphore(config.max_calls)
        self._resources = AsyncExitStack()

    async def __aenter__(self) -> Self:
        headers = {"Content-Type": "application/json"}
        if self._config.key is not None:
            headers["Authorization"] = f"Bearer {self._config.key}"
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
        self, model: str, instructions: str, quote: Callable[[str], str], read: Callable[[str], T]
    ) -> T:
        """Returns what `read` finds in the model's reply; it raises `Unreadable` if there is no
        verdict. `instructions` hold `{code}`, and `quote` is given it: each call has a fresh code,
        which quoted text cannot know. Raises `EvaluatorError`, retryable unless the endpoint
        refuses the request itself, or the budget is used up."""
        delay_s, problem = FIRST_DELAY_S, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)
            code = token_hex(8)
            messages = [
                {"role": "system", "content": instructions.format(code=code)},
                {"role": "user", "content": quote(code)},
            ]
            try:
                async with self._slots:
                    reply = await self._reply(model, messages)
                return read(reply)
            except Unreadable as error:
                problem = str(error)
                if isinstance(error, _Transient):
                    delay_s = max(delay_s, min(error.after_s, LONGEST_DELAY_S))
                log.warning("judge: attempt %d of %d: %s", attempt + 1, ATTEMPTS, problem)
        raise EvaluatorError(
            f"the judge gave no verdict in {ATTEMPTS} attempts: {problem}", retryable=True
        )

    async def _reply(self, model: str, messages: Sequence[Mapping[str, str]]) -> str:
        self._count()
        body = {
            "model": model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        }
        url = f"{self._config.url.rstrip('/')}/chat/completions"
        try:
            async with (
                asyncio.timeout(CALL_TIMEOUT_S),
                self._http.stream("POST", url, content=orjson.dumps(body)) as response,
            ):
                _check(response)
                content = await _read(response)
        except (httpx.HTTPError, TimeoutError) as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error
        return _text_of(content)

    def _count(self) -> None:
        budget = self._config.budget
        if budget is not None and self.calls >= budget:
            raise EvaluatorError(
                f"the judge's budget of {budget} calls is used up",
                hint="start the service again with a larger --judge-budget",
            )
        self.calls += 1


def _check(response: httpx.Response) -> None:
    """Raises for an error status, without the body, in which endpoints like to repeat keys."""
    if response.status_code == HTTPStatus.OK:
        return
    problem = f"it answered {response.status_code}"
    if (
        response.status_code in TRANSIENT
        or response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
    ):
        raise _Transient(problem, _retry_after_s(response.headers))
    raise EvaluatorError(
        f"the judge refused the request: {problem}",
        hint=f"check --judge-url, --judge-model and {KEY_VARIABLE}",
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
            raise Unreadable(f"its reply has more than {MAX_REPLY_BYTES} bytes")
    return bytes(content)


def _text_of(content: bytes) -> str:
    try:
        choice: Any = orjson.loads(content)["choices"][0]
        text, reason = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Unreadable("its reply is not a chat completion") from None
    if not isinstance(text, str) or reason == "length":
        raise Unreadable("its reply has no text, or was cut off")
    return text


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "0")))
    except ValueError:  # a date
        return 0.0
