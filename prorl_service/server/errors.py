"""Every failure of a request, as an `ErrorResponse` with the right status."""

import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prorl_service.errors import InvalidRequest, ProRLError, TooLarge
from prorl_service.schemas import Blame, ErrorInfo, ErrorResponse, FieldProblem
from prorl_service.schemas.suggestions import nearest, nearest_fields

log = logging.getLogger(__name__)


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ProRLError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unknown)


class LimitBody:
    """Refuses request bodies above a size, before and while they are read. ASGI middleware.

    A body that grows too large ends early, and the application's response to it is not sent.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, unlimited: tuple[str, ...]) -> None:
        """`unlimited`: beginnings of METHOD PATH."""
        self._app = app
        self._max_bytes = max_bytes
        self._unlimited = unlimited

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or f"{scope['method']} {scope['path']}".startswith(
            self._unlimited
        ):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await error_response(self._error())(scope, receive, send)
            return
        left = self._max_bytes

        async def receive_unless_too_large() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            return message if left >= 0 else {"type": "http.request", "body": b""}

        async def send_unless_too_large(message: Message) -> None:
            if left >= 0:
                await send(message)

        await self._app(scope, receive_unless_too_large, send_unless_too_large)
        if left < 0:
            await error_response(self._error())(scope, receive, send)

    def _error(self) -> TooLarge:
        return TooLarge(
            f"the request body is larger than {self._max_bytes} bytes",
            hint="submit in smaller parts, or raise `prorl serve --max-body-mb`",
            fields=[FieldProblem(field="body", message="too large")],
        )


def error_response(error: ProRLError) -> Response:
    headers = {}
    if error.answer_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.answer_status in (429, 503):
        headers["Retry-After"] = str(error.retry_after_s)
    return _json(error.info(), error.answer_status, headers)


def _json(info: ErrorInfo, status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(
        ErrorResponse(error=info).model_dump_json(),
        status,
        headers=headers,
        media_type="application/json",
    )


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProRLError)
    return error_response(error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if _is_without_type(request, error):
        return error_response(
            InvalidRequest.of_field(
                "body",
                "not read, since its Content-Type is not JSON",
                hint="send the header 'Content-Type: application/json'",
            )
        )
    problems = [_field_problem(problem) for problem in error.errors()]
    message = "; ".join(f"{_named(one.field, error.body)}: {one.message}" for one in problems)
    hint = _suggestion(request, error) or "see /docs for the schema"
    return error_response(InvalidRequest(message, fields=problems, hint=hint))


def _named(field: str, body: Any) -> str:
    """Returns the place of a problem for people: within a task that has an id, by that id."""
    match field.split(".", 3), body:
        case ["groups", index, "task", place], {"groups": list(groups)}:
            match groups[int(index)]:
                case {"task": {"task_id": str(task_id)}}:
                    return f"task {task_id}: {place}"
    return field


def _suggestion(request: Request, error: RequestValidationError) -> str:
    body = request.scope["route"].body_field
    in_body = (one | {"loc": one["loc"][1:]} for one in error.errors() if one["loc"][0] == "body")
    return nearest_fields(in_body, body and body.field_info.annotation)


async def refuse_unknown_parameters(request: Request) -> None:
    """Raises `InvalidRequest` for a parameter of the query that the route does not have."""
    fields = request.scope["route"].dependant.query_params
    known = {name for field in fields for name in _names(field)}
    for name in request.query_params:
        if name not in known:
            hint = nearest(name, known) or "see /docs for the parameters"
            raise InvalidRequest.of_field(name, "there is no such parameter", hint=hint)


def _names(field: Any) -> Iterable[str]:
    """Returns the names of a parameter, or of all in a model of parameters."""
    annotation = field.field_info.annotation
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation.model_fields if is_model else [field.alias]


def _is_without_type(request: Request, error: RequestValidationError) -> bool:
    """Returns whether the Content-Type is not JSON: FastAPI then takes the body for a string."""
    content_type = request.headers.get("content-type", "")
    is_whole = any(problem["loc"] == ("body",) for problem in error.errors())
    return is_whole and "json" not in content_type and isinstance(error.body, bytes | str)


def _field_problem(problem: Any) -> FieldProblem:
    if problem["type"] == "json_invalid":
        position = problem["loc"][-1]
        reason = problem.get("ctx", {}).get("error", "")
        return FieldProblem(field="body", message=f"not JSON at character {position}: {reason}")
    where = ".".join(str(part) for part in problem["loc"][1:])
    return FieldProblem(field=where or "body", message=problem["msg"])


async def _http(request: Request, error: Exception) -> Response:
    """Answers what the framework refuses: unknown paths and methods, unreadable bodies."""
    assert isinstance(error, HTTPException)
    refusal = InvalidRequest(
        f"{request.method} {request.url.path}: {error.detail}", hint="see /docs"
    )
    kind = "".join(filter(str.isalpha, HTTPStatus(error.status_code).phrase.title()))
    info = refusal.info().model_copy(update={"kind": kind})
    return _json(info, error.status_code, dict(error.headers or {}))


async def _unknown(request: Request, error: Exception) -> Response:
    log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
    info = ErrorInfo(
        kind=type(error).__name__,
        blame=Blame.SERVICE,
        message="the service failed to answer",
        hint="this is a bug of the service; its log has the traceback",
    )
    return _json(info, 500)
