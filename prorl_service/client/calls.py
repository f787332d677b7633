"""Calls of a rollout service over HTTP, for the asynchronous client; knows no route.

- Every call is idempotent. It is retried if the service is unreachable, or answers that a retry can
  help: with exponential backoff, for at most `retry_s` after the last sign of progress.
- A broken stream resumes with what was not yet received, even after a restart of the service. A
  service that began a new run has forgotten its rollouts: it answers 404, and the groups must be
  submitted again.
- Every failure is a `ServiceCallError` that says what to do about it; `WaitTimeout` is one.

Proxy settings of the environment are ignored: the service is a neighbour, not the internet.
"""

import asyncio
import copy
import os
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
)
from contextlib import aclosing
from functools import cache
from typing import Annotated, Any, Literal, Self, TypeVar

import httpx
from pydantic import AfterValidator, BaseModel

from prorl_service.client.errors import CA_FILE, ServiceCallError, raise_for_status, readable_errors
from prorl_service.client.retries import Answer, Backoff, Received, Reception, ServiceRequest
from prorl_service.errors import ProRLError
from prorl_service.net.credentials import authorization
from prorl_service.net.sockets import NOTICE_VANISHED
from prorl_service.schemas.arrays import PACKED, PACKED_MEDIA_TYPE
from prorl_service.schemas.base import WireModel

Wire = Literal["packed", "json"]
Piece = bytes | memoryview
"""Part of a file to be sent."""
Model = TypeVar("Model", bound=WireModel)

CONNECT_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 60.0
"""Silence after which a connection counts as broken; streams send empty lines more often."""


class NotOneService(ProRLError, ValueError):
    """A text is not the HTTP URL of one service."""


def service_url(url: str) -> str:
    """Returns `url`. Raises `NotOneService`."""
    if "," in url:
        message = f"{url!r} names several services, and a client has one"
        raise NotOneService(message, hint="name one front: it carries a whole run (docs/front.md)")
    if not url.startswith(("http://", "https://")):
        message = f"{url!r} is not a service's URL"
        raise NotOneService(message, hint=f"write it as 'http://{url}'")
    try:
        httpx.URL(url)
    except httpx.InvalidURL as error:
        message = f"{url!r} is not a service's URL: {error}"
        raise NotOneService(message, hint="write it as 'http://HOST:PORT'") from None
    return url


ServiceUrl = Annotated[str, AfterValidator(service_url)]


@cache
def _trusted(ca_file: str | None) -> ssl.SSLContext:
    """Returns a TLS context of this process: reading its certificates takes 40 ms. Raises
    `ProRLError` for a file that holds no certificate."""
    context = httpx.create_ssl_context(trust_env=False)
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # ssl.SSLError among them
            raise ProRLError(
                f"{CA_FILE}={ca_file} cannot be used: {error.strerror or error}",
                hint="name a file of certificates in PEM form, or unset it",
            ) from None
    return context


def transport_options() -> dict[str, Any]:
    """Returns the arguments of a transport of httpx. Raises `ProRLError`."""
    return {
        "verify": _trusted(os.environ.get(CA_FILE) or None),
        # The service closes connections idle for 5 s; the client must not reuse one at that moment.
        "limits": httpx.Limits(max_connections=None, keepalive_expiry=4),
        "trust_env": False,
        "socket_options": NOTICE_VANISHED,
    }


class ServiceCalls:
    """What `AsyncRolloutClient` has of HTTP. Use it as a context manager, or `aclose` it."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retry_s: float = 60,
        idle_s: float = IDLE_TIMEOUT_S,
        wire: Wire = "packed",
        training: str | None = None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """The arguments are `RolloutClient`'s. `on_answer`: called after each answer that is no
        error, and after each part of a stream."""
        self._retry_s, self._idle_s = retry_s, idle_s
        self._on_answer = on_answer
        packed = f"{PACKED_MEDIA_TYPE}, application/json"
        headers = {"Accept": packed if wire == "packed" else "application/json"}
        headers |= authorization(service_url(url), token)
        if training is not None:
            headers["Prorl-Training"] = training
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, trust_env=False, transport=self._transport()
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    def limited(self, *, retry_s: float, idle_s: float) -> Self:
        """Returns a client with these limits over the same connections, which this one closes."""
        other = copy.copy(self)
        other._retry_s, other._idle_s = retry_s, idle_s
        return other

    # --- waiting, which the blocking client does without an event loop ----------------------------

    def _transport(self) -> httpx.AsyncBaseTransport:
        return httpx.AsyncHTTPTransport(**transport_options())

    def _sleep(self, seconds: float) -> Awaitable[None]:
        return asyncio.sleep(seconds)

    async def _pieces(self, content: Iterable[Piece]) -> AsyncIterator[Piece]:
        """Yields pieces, each of which may take the time of a disk or device copy, in a thread."""
        pieces = iter(content)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    # --- requests and streams ---------------------------------------------------------------------

    async def _get(
        self,
        path: str,
        answer: type[Model],
        params: Mapping[str, Any] = {},
        silence_s: float | None = None,
    ) -> Model:
        read = answer.from_answer
        return await self._send(
            ServiceRequest("GET", path, read, params=params, silence_s=silence_s)
        )

    async def _do(
        self,
        method: str,
        path: str,
        answer: type[Model],
        body: BaseModel | None = None,
        headers: Mapping[str, str] = {},
    ) -> Model:
        read = answer.from_answer
        return await self._send(ServiceRequest(method, path, read, body, headers=headers))

    async def _tell(self, method: str, path: str, body: BaseModel | None = None) -> None:
        await self._send(ServiceRequest(method, path, bytes, body))

    async def _send(
        self,
        request: ServiceRequest[Answer],
        content: Iterable[Piece] | None = None,
        retry_s: float | None = None,
    ) -> Answer:
        """`content`: body in pieces. `retry_s`: None for the client's own."""
        backoff = Backoff(self._retry_s if retry_s is None else retry_s)
        while True:
            message = self._build(request, None if content is None else self._pieces(content))
            try:
                with readable_errors(message):
                    response = await self._http.send(message)
                    raise_for_status(response)
                    answer = request.read(response.content)
                self._on_answer()
                return answer
            except ServiceCallError as error:
                await self._sleep(backoff.delay_s(error))

    async def _receive(self, reception: Reception[Received]) -> AsyncGenerator[Received, None]:
        while not reception.is_over:
            message = self._build(reception.request())
            try:
                with readable_errors(message):
                    async with aclosing(await self._http.send(message, stream=True)) as response:
                        if response.is_error:
                            await response.aread()
                        raise_for_status(response)
                        async for chunk in response.aiter_bytes():
                            self._on_answer()
                            for received in reception.feed(chunk):
                                yield received
                        reception.closed()
            except ServiceCallError as error:
                await self._sleep(reception.delay_s(error))

    def _build(
        self, request: ServiceRequest[Answer], content: AsyncIterator[Piece] | None = None
    ) -> httpx.Request:
        body: Any = content
        headers = {"Content-Type": "application/octet-stream"} if content is not None else {}
        if request.body is not None:
            body = request.body.model_dump_json(context=PACKED).encode()
            headers = {"Content-Type": "application/json"}
        idle_s = self._idle_s
        read_s = idle_s if request.silence_s is None else request.silence_s
        connect_s = min(CONNECT_TIMEOUT_S, idle_s)
        return self._http.build_request(
            request.method,
            request.path,
            content=body,
            params=request.params or None,
            headers={**request.headers, **headers},
            timeout=httpx.Timeout(idle_s, connect=connect_s, read=read_s),
        )
