"""The gateway over HTTP: an ASGI application for one rollout, in all dialects.

Knows neither sandboxes nor the service. A stream begins with the reply, or after `KEEP_ALIVE_S`
with events that keep its client from giving up; a refusal that comes earlier has a status.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from prorl_service.gateway.calls import CallReply, CallRequest, Refused
from prorl_service.gateway.dialects import DIALECTS, Body, Dialect, call_of
from prorl_service.gateway.limits import LIMITS, BodyRoom, DoorLimits, OpenCalls, read_body
from prorl_service.gateway.rollout import RolloutGateway

KEEP_ALIVE_S = 10.0
SSE = "text/event-stream"
GONE = Response(status_code=499)
"""Response to a client that has left."""
PREFILLED = (
    "the last message is the assistant's, and replies cannot be prefilled: end the conversation"
    " with a user's message, or the result of a tool"
)
RETRY_HEADER = "x-stainless-retry-count"
"""Header by which the clients of OpenAI and Anthropic say that they ask again."""
SUBAGENT_HEADERS = ("x-claude-code-agent-id", "x-parent-session-id")
"""Headers that Claude Code and opencode send for their sub-agents alone."""


def error_response(refusal: Refused, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Returns a refusal that belongs to no call, in the form that clients of all dialects read."""
    error = {"message": str(refusal), "type": refusal.kind}
    return JSONResponse({"type": "error", "error": error}, refusal.status, headers)


def application(gateway: RolloutGateway, limits: DoorLimits = LIMITS) -> ASGIApp:
    """Makes the application; paths may have any prefix, such as `/v1`."""
    return _Api(gateway, limits)


class _Api:
    def __init__(self, gateway: RolloutGateway, limits: DoorLimits) -> None:
        self._gateway = gateway
        self._open = OpenCalls(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        try:
            async with self._open.one() as room:
                response = await self._answer(Request(scope, receive), room)
                await response(scope, receive, send)
        except Refused as refusal:
            await error_response(refusal)(scope, receive, send)

    async def _answer(self, request: Request, room: BodyRoom) -> Response:
        path: str = request.scope["path"].rstrip("/")
        if request.method in ("GET", "HEAD"):
            return self._models(path) if path else JSONResponse({"status": "ok"})
        if request.method != "POST":
            refusal = Refused(f"the gateway answers no {request.method}", 405)
            return error_response(refusal, {"allow": "GET, HEAD, POST"})
        if path.endswith("/messages/count_tokens"):
            return await self._count(request, room)
        for ending, dialect in DIALECTS.items():
            if path.endswith(ending):
                return await self._call(request, room, dialect)
        return _not_found(path)

    def _models(self, path: str) -> Response:
        known = {
            "id": self._gateway.model,
            "object": "model",
            "type": "model",
            "display_name": self._gateway.model,
            "created": 0,
            "created_at": "1970-01-01T00:00:00Z",
            "owned_by": "prorl",
            "max_model_len": self._gateway.max_model_len,
        }
        if path.endswith("/models"):
            return JSONResponse({"object": "list", "data": [known], "has_more": False})
        return JSONResponse(known) if "/models/" in path else _not_found(path)

    async def _count(self, request: Request, room: BodyRoom) -> Response:
        dialect = DIALECTS["/messages"]
        try:
            _, body = await read_body(request, room)
            call = await self._read(dialect, {"max_tokens": 1, **body})
            tokens = await self._gateway.count_tokens(call)
        except Refused as refusal:
            return JSONResponse(dialect.error(refusal), refusal.status)
        except ClientDisconnect:
            return GONE
        return JSONResponse({"input_tokens": tokens})

    async def _read(self, dialect: Dialect, body: Body) -> CallRequest:
        """Reads a request, in a thread if there may be pictures to read. Raises `Refused`."""
        if not self._gateway.sees:
            return call_of(dialect, body)
        return await asyncio.to_thread(call_of, dialect, body, sees=True)

    async def _call(self, request: Request, room: BodyRoom, dialect: Dialect) -> Response:
        try:
            raw, body = await read_body(request, room)
            call = replace(
                await self._read(dialect, body),
                is_subagent=any(name in request.headers for name in SUBAGENT_HEADERS),
            )
            if call.conversation[-1].message.role == "assistant":
                raise Refused(PREFILLED)
        except Refused as refusal:
            self._gateway.note(refusal)
            return JSONResponse(dialect.error(refusal), refusal.status)
        except ClientDisconnect:
            return GONE
        begun = self._gateway.begun()
        key = hashlib.blake2b(request.url.path.encode() + raw, digest_size=16).digest()
        answering = self._gateway.answer(call, begun, key=key, is_repeated=_is_repeated(request))
        task = asyncio.create_task(answering)
        return await _Answer(dialect, body, call.is_streamed, begun, task).response(request)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer to one call, while it is sampled."""

    dialect: Dialect
    body: Mapping[str, Any]
    is_streamed: bool
    begun: CallReply
    task: "asyncio.Task[CallReply]"

    async def response(self, request: Request) -> Response:
        dialect, task = self.dialect, self.task
        try:
            await _wait(request, task, KEEP_ALIVE_S if self.is_streamed else None)
        except BaseException:
            task.cancel()
            raise
        if not task.done():
            return StreamingResponse(self._stream(), media_type=SSE)
        try:
            reply = task.result()
        except Refused as refusal:
            return JSONResponse(dialect.error(refusal), refusal.status)
        except asyncio.CancelledError:  # the client has gone
            return GONE
        if self.is_streamed:
            return Response(b"".join(dialect.events(reply, self.body)), media_type=SSE)
        return JSONResponse(dialect.reply(reply))

    async def _stream(self) -> AsyncIterator[bytes]:
        dialect, task, sent = self.dialect, self.task, 0
        try:
            while not task.done():
                yield dialect.waiting(self.begun, sent)
                sent += 1
                await asyncio.wait((task,), timeout=KEEP_ALIVE_S)
            for event in dialect.events(task.result(), self.body, sent):
                yield event
        except Refused as refusal:
            yield dialect.error_event(refusal, self.begun, sent)
        finally:
            task.cancel()


async def _wait(request: Request, task: "asyncio.Task[CallReply]", timeout_s: float | None) -> None:
    """Waits for the call, and cancels it if its client goes away."""
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait((task, leaving), timeout=timeout_s, return_when="FIRST_COMPLETED")
        if leaving.done() and not task.done():
            task.cancel()
            await asyncio.wait((task,))
    finally:
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _is_repeated(request: Request) -> bool:
    count = request.headers.get(RETRY_HEADER, "0")
    return count.isdigit() and int(count) > 0


def _not_found(path: str) -> Response:
    return error_response(Refused(f"the gateway has no {path}", 404, "not_found_error"))
