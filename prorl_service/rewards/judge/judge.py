"""Judge: a language model that says whether two answers to a question are the same.

The operator chooses the model, behind any OpenAI-compatible endpoint. It is asked twice, with the
answers in either order, and answers are the same only if it says so both times. A judge that fails
gives no verdict: that is raised, and never a reward of 0.

The policy wrote the answer that is judged, and is rewarded if it talks the judge round. So the
answer is short, quoted between lines that it cannot know, and said to be data; the verdict is read
from the judge's last line only. docs/math_code_science.md names the remaining risks.
"""

import asyncio
import logging
import random
import re
import tomllib
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex
from typing import Any, Self
from weakref import WeakValueDictionary

import httpx
import orjson

from prorl_service.errors import EvaluatorError, ProRLError
from prorl_service.rewards.judge.cache import JudgeCache, Judgement, key_of

log = logging.getLogger(__name__)

KEY_VARIABLE = "PRORL_JUDGE_KEY"
ATTEMPTS = 5
FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
CALL_TIMEOUT_S = 90.0
BUDGET_S = 240.0
"""Budget of one judgement, waiting included: below EVAL's, so that the judge is blamed."""
MAX_TOKENS = 4096
"""Maximum length of a reply: room to think before the verdict."""
MAX_REPLY_BYTES = 1024 * 1024
MAX_ANSWER_CHARS = 1000
"""Maximum length of an answer. A longer one is wrong without being judged: it may argue."""

TRANSIENT = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}

PROMPTS: dict[str, str] = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text())

_VERDICT = re.compile(r"VERDICT: (SAME|DIFFERENT)")


@dataclass(frozen=True, slots=True)
class JudgeConfig:
    url: str
    """Base URL with the version: `https://host/v1`."""
    model: str
    key: str | None = field(default=None, repr=False)
    cache: Path | None = None
    """SQLite file; None keeps verdicts in memory only."""
    max_calls: int = 16
    """Maximum number of calls in flight; more wait."""

    def __post_init__(self) -> None:
        """Raises `ProRLError`."""
        if not _is_address(self.url) or not self.model.strip():
            raise ProRLError(
                "a judge needs a URL and the name of a model",
                hint="`--judge-url http://host:port/v1 --judge-model NAME`",
            )


class _Transient(Exception):
    """Failure after which another attempt may succeed, `after_s` seconds later at the earliest."""

    def __init__(self, problem: str, after_s: float = 0.0) -> None:
        super().__init__(problem)
        self.after_s = after_s


class Judge:
    """Client of the judge, shared by all rollouts. Use as an async context manager."""

    def __init__(self, config: JudgeConfig) -> None:
        """Raises `ProRLError` for a cache that cannot be opened."""
        self._config = config
        self._cache = JudgeCache(config.cache)
        self._slots = asyncio.Semaphore(config.max_calls)
        self._locks: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._resources = AsyncExitStack()

    async def __aenter__(self) -> Self:
        headers = {"Content-Type": "application/json"}
        if self._config.key is not None:
            headers["Authorization"] = f"Bearer {self._config.key}"
        self._http = await self._resources.enter_async_context(
            httpx.AsyncClient(
                headers=headers,
                timeout=None,  # `_ask` limits a call as a whole
                limits=httpx.Limits(max_connections=None),  # `max_calls` is the limit
            )
        )
        self._resources.callback(self._cache.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._resources.aclose()

    async def compare(self, *, question: str, gold: str, answer: str) -> Judgement:
        """Raises `EvaluatorError`, retryable unless the endpoint refuses the request itself."""
        if len(answer) > MAX_ANSWER_CHARS:
            return Judgement.DIFFERENT
        try:
            async with asyncio.timeout(BUDGET_S):
                return await self._compare(question, gold, answer)
        except TimeoutError:
            raise EvaluatorError(
                f"the judge gave no verdict within {BUDGET_S:g} s", retryable=True
            ) from None

    async def _compare(self, question: str, gold: str, answer: str) -> Judgement:
        key = key_of(self._config.model, PROMPTS["instructions"], question, gold, answer)
        # Siblings give equal answers at the same time: one asks, the others read its verdict.
        async with self._locks.setdefault(key, asyncio.Lock()):
            judgement = await self._cache.get(key)
            if judgement is None:
                judgement = await self._both_ways(question, gold, answer)
                await self._cache.put(key, judgement)
            return judgement

    async def _both_ways(self, question: str, gold: str, answer: str) -> Judgement:
        if not await self._says_same(question, gold, answer):
            return Judgement.DIFFERENT  # whatever the other order would give
        if await self._says_same(question, answer, gold):
            return Judgement.SAME
        return Judgement.DISAGREED

    async def _says_same(self, question: str, first: str, second: str) -> bool:
        delay_s, problem = FIRST_DELAY_S, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)
            try:
                async with self._slots:
                    reply = await self._ask(question, first, second)
                return _read_verdict(reply)
            except _Transient as transient:
                problem = str(transient)
                delay_s = max(delay_s, min(transient.after_s, LONGEST_DELAY_S))
                log.warning("judge: attempt %d of %d: %s", attempt + 1, ATTEMPTS, problem)
        raise EvaluatorError(
            f"the judge gave no verdict in {ATTEMPTS} attempts: {problem}", retryable=True
        )

    async def _ask(self, question: str, first: str, second: str) -> str:
        """Returns the reply's text. Each call has a fresh code, which quoted text cannot know."""
        code = token_hex(8)
        quoted = PROMPTS["quoted"].format(code=code, question=question, first=first, second=second)
        body = {
            "model": self._config.model,
            "messages": [
                {"role": "system", "content": PROMPTS["instructions"].format(code=code)},
                {"role": "user", "content": quoted},
            ],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        }
        url = f"{self._config.url.rstrip('/')}/chat/completions"
        try:
            async with (
                asyncio.timeout(CALL_TIMEOUT_S),
                self._http.stream("POST", url, content=orjson.dumps(body)) as response,
            ):
                self._check(response)
                content = await _read(response)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _Transient(f"{type(error).__name__}: {error}") from error
        return _text_of(content)

    def _check(self, response: httpx.Response) -> None:
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
            raise _Transient(f"its reply has more than {MAX_REPLY_BYTES} bytes")
    return bytes(content)


def _text_of(content: bytes) -> str:
    try:
        choice: Any = orjson.loads(content)["choices"][0]
        text, reason = choice["message"]["content"], choice.get("finish_reason")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise _Transient("its reply is not a chat completion") from None
    if not isinstance(text, str) or reason == "length":
        raise _Transient("its reply has no text, or was cut off")
    return text


def _read_verdict(reply: str) -> bool:
    """Reads the last line, which must hold the only verdict."""
    lines = [line.strip() for line in reply.strip().splitlines()]
    verdicts = [match[1] for match in map(_VERDICT.fullmatch, lines) if match]
    if len(verdicts) != 1 or not _VERDICT.fullmatch(lines[-1]):
        raise _Transient("its reply does not end with one verdict")
    return verdicts[0] == "SAME"


def _retry_after_s(headers: Mapping[str, str]) -> float:
    try:
        return max(0.0, float(headers.get("Retry-After", "0")))
    except ValueError:  # a date
        return 0.0
