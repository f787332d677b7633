"""Calls to one engine over HTTP: JSON in, JSON out, and an engine's refusals as our errors.

All kinds of engines use it. Knows no routes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import orjson

from prorl_service.errors import (
    BackendBusy,
    BackendError,
    BackendLent,
    BackendRejected,
    BackendUnavailable,
    WeightsRejected,
)
from prorl_service.inference.connections import Connections, HttpAnswer, Unreachable

log = logging.getLogger(__name__)

T = TypeVar("T")

WEIGHTS_REJECTED = "WeightsRejected"
"""Error type with which an engine refuses weights before it has touched its own."""
NO_QUOTA = "insufficient_quota"
"""Error type with which APIs refuse an account without money, with the status 429."""
MAX_RETRY_AFTER_S = 300
LENT = "EngineLent"
"""Error type with which an engine hands calls back while its owner needs it."""

HINTS: Mapping[int, str] = {
    HTTPStatus.UNAUTHORIZED: "pass the engine's key: `--backend-key-file`, PRORL_BACKEND_KEY, or "
    "`api_key` when adding it; if it is not an inference engine, correct the URL",
    HTTPStatus.FORBIDDEN: "start vLLM with --enable-scale-out; address `prorl engine` as "
    "localhost, or start it with --allow-host",
}
"""Hints by status, before and after the kind of the engine is known."""
SILENT_STATUSES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Statuses whose text is never shown: it may repeat the key."""
MAX_REASON_CHARS = 1000

Progress = Callable[[], None]
"""Callback, on the event loop, after each part of a file that an engine has fetched."""


class NotOffered(BackendRejected):
    """The engine has no such route, or was told not to serve it."""


class EngineHttp:
    """Calls raise `BackendError`: `BackendUnavailable` if the engine is busy or out of reach,
    `BackendRejected` if it refuses the request itself, plain if its answer is invalid."""

    def __init__(self, url: str, connections: Connections, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.backend_id = self.url.split("://", 1)[1].partition("/")[0]
        self.api_key = api_key
        """Bearer token of every call to the engine."""
        self.hints = HINTS
        """Hints for refusals, by status; an engine adds its own."""
        self._connections = connections
        self._warned: set[str] = set()

    async def tell(self, route: str, json: Any = None) -> None:
        """POSTs, and ignores what the answer says."""
        await self._request("POST", route, json, MappingProxyType({}))

    async def ask(
        self,
        method: Literal["GET", "POST"],
        route: str,
        read: Callable[[Any], T],
        *,
        json: Any = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> T:
        """Returns what `read` makes of the answer's JSON, or of None if the answer is empty.
        `read` raises `KeyError`, `IndexError`, `TypeError`, `ValueError` or `AttributeError` for an
        invalid answer."""
        answer = await self._request(method, route, json, headers)
        content = answer.content
        return self._read(route, lambda: read(orjson.loads(content) if content else None))

    def _read(self, route: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            url = self.url + route
            raise BackendError(f"{url} sent an invalid answer: {error!r}") from error

    async def ask_text(self, route: str, read: Callable[[str], T]) -> T:
        """Returns what `read` makes of the answer's text; see `ask`."""
        answer = await self._request("GET", route, None, MappingProxyType({}))
        return self._read(route, lambda: read(answer.content.decode()))

    async def _request(
        self, method: Literal["GET", "POST"], route: str, json: Any, headers: Mapping[str, str]
    ) -> HttpAnswer:
        body = b""
        if json is not None:
            body = orjson.dumps(json)
            headers = {**headers, "Content-Type": "application/json"}
        if self.api_key is not None:
            headers = {**headers, "Authorization": f"Bearer {self.api_key}"}
        url = self.url + route
        try:
            answer = await self._connections.request(method, url, headers=headers, body=body)
        except Unreachable as error:
            raise BackendUnavailable(f"{method} {url}: {error}") from error
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:  # engines do not redirect
            raise self._failure(method, url, answer)
        return answer

    def _failure(self, method: str, url: str, answer: HttpAnswer) -> BackendError:
        """Returns the error for a refusal, with the engine's reason for a POST only. A host gets no
        POST before its answers to GET have shown that it is an engine, so callers never see texts
        of other hosts."""
        kind, reason = _reason_of(answer.content)
        if self.api_key:
            reason = reason.replace(self.api_key, "***")
        log.debug("%s %s: %d %s", method, url, answer.status, reason)
        is_silent = method == "GET" or answer.status in SILENT_STATUSES
        text = f"{method} {url}: {answer.status} {'' if is_silent else reason}".rstrip()
        hint = self.hints.get(answer.status, "")
        if answer.status == HTTPStatus.TOO_MANY_REQUESTS and kind != NO_QUOTA:
            busy = BackendBusy(text, hint=hint)
            busy.retry_after_s = _seconds(answer.retry_after)
            return busy
        return _error_of(text, answer.status, kind, hint)

    @asynccontextmanager
    async def budget(self, timeout_s: float) -> AsyncIterator[Progress]:
        """Raises `BackendUnavailable` after `timeout_s`. Yields a function that restarts the
        time."""
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(timeout_s) as budget:
                yield lambda: budget.reschedule(now() + timeout_s)
        except TimeoutError:
            message = f"{self.url} did not answer within {timeout_s:g} s"
            raise BackendUnavailable(message) from None

    def warn(self, message: str) -> None:
        """Logs a message about this engine once, with the URL in place of its %s."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message, self.url)


def _reason_of(content: bytes) -> tuple[str, str]:
    """Returns an error's type and message; "" for both if it is not an engine's. SGLang leaves
    the envelope or the type out."""
    try:
        answer = orjson.loads(content)
        error = answer.get("error", answer)
        message = error["error_message"] if "error_message" in error else error["message"]
        return str(error.get("type", "")), str(message)[:MAX_REASON_CHARS]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""


def _seconds(retry_after: bytes) -> int:
    """Returns 0 if none are given, or a date."""
    return min(int(retry_after), MAX_RETRY_AFTER_S) if retry_after.isdigit() else 0


def _error_of(text: str, status: int, kind: str, hint: str) -> BackendError:
    if kind == WEIGHTS_REJECTED:
        return WeightsRejected(text)
    if kind == LENT:
        return BackendLent(text)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return BackendUnavailable(text)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return BackendError(text)
    is_offered = status not in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
    return (BackendRejected if is_offered else NotOffered)(text, hint=hint)
