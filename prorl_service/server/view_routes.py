"""The routes for people: lists, one rollout as text and as tokens, agents, training, events.

The page is here, too: its files hold no data and need no token.

The routes only read: they renew no lease, wait for no rollout and change nothing. They have no
logic of their own. A browser revalidates the page's files each time, so that no page is older than
its service. The policy lets the page load only from its own service, and keeps text of models and
tools from becoming script.
"""

from collections.abc import AsyncIterator
from typing import Annotated

import orjson
from fastapi import APIRouter, Header, HTTPException, Path, Query, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from prorl_service.agents.description import describe
from prorl_service.page import files
from prorl_service.schemas import ID
from prorl_service.schemas.training import Runs, Training
from prorl_service.schemas.views import (
    MAX_TOKENS,
    Agents,
    Event,
    GroupQuery,
    GroupRows,
    RolloutQuery,
    RolloutRows,
    RolloutText,
    TaskQuery,
    TaskRows,
    TokenSlice,
)
from prorl_service.server import saved_pages
from prorl_service.server.service import ServiceDep, json_response
from prorl_service.shelf.events import EventHub

SSE = "text/event-stream"
HTML = "text/html"
MAX_INDEX = 2**31

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept-Encoding",
}

view_router = APIRouter(tags=["For people"])
page_router = APIRouter(include_in_schema=False)

RolloutPath = Annotated[str, Path(pattern=ID, examples=["step7-task12.0"])]
RunQuery = Annotated[
    str | None, Query(description="Run, if several have the id (default: the latest that has it).")
]
Known = Annotated[str | None, Header(alias="If-None-Match")]
Encodings = Annotated[str, Header(alias="Accept-Encoding")]


@view_router.get("/groups", summary="List groups", response_model=GroupRows)
async def list_groups(query: Annotated[GroupQuery, Query()], service: ServiceDep) -> Response:
    """Groups in flight and ended, acknowledged or not, newest first."""
    return json_response(await service.lists.groups(query))


@view_router.get("/rollouts", summary="List rollouts", response_model=RolloutRows)
async def list_rollouts(query: Annotated[RolloutQuery, Query()], service: ServiceDep) -> Response:
    """Rollouts in flight and ended, acknowledged or not, newest first; without tokens and texts."""
    return json_response(await service.lists.rollouts(query))


@view_router.get(
    "/rollouts/{rollout_id}/text",
    summary="Get a rollout as text",
    response_model=RolloutText,
)
async def get_text(rollout_id: RolloutPath, service: ServiceDep, run: RunQuery = None) -> Response:
    """One rollout: prompt, turns with reasoning, tool calls with whole results, verdict, siblings.
    A rollout in flight is shown so far. A 404 says why there is none."""
    return json_response(await service.details.text(rollout_id, run))


@view_router.get(
    "/rollouts/{rollout_id}/tokens",
    summary="Get a rollout's tokens",
    response_model=TokenSlice,
)
async def get_tokens(
    rollout_id: RolloutPath,
    service: ServiceDep,
    segment: Annotated[int, Query(ge=0, le=MAX_INDEX)] = 0,
    start: Annotated[int, Query(ge=0, le=MAX_INDEX)] = 0,
    n: Annotated[int, Query(ge=1, le=MAX_TOKENS)] = 1024,
    run: RunQuery = None,
) -> Response:
    """A slice of a segment, its prompt included: what was sampled, how likely, by which version."""
    details = service.details
    return json_response(
        await details.tokens(rollout_id, run, segment=segment, start=start, count=n)
    )


@view_router.get(
    "/page",
    summary="Save groups as an HTML file",
    response_class=Response,
    responses={200: {"content": {HTML: {"schema": {"type": "string"}}}}},
)
async def save_page(
    service: ServiceDep,
    group_id: Annotated[list[str], Query(min_length=1, max_length=saved_pages.MAX_GROUPS)],
    run: RunQuery = None,
    title: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """Whole groups as one HTML file, which shows them as the page does, without a service or
    network: conversations, comparison, tokens."""
    page = await saved_pages.save(service.lists, service.details, group_id, run, title)
    headers = {"Content-Disposition": 'attachment; filename="rollouts.html"'}
    return Response(page, headers=headers, media_type=HTML)


@view_router.get("/training", summary="Get a run by policy version")
async def get_training(
    service: ServiceDep,
    run: RunQuery = None,
    agent: str | None = None,
    metric: Annotated[
        list[str], Query(description="Names of the trainer's metrics to return.", max_length=64)
    ] = [],  # noqa: B006
) -> Training:
    """Rewards, informative groups, failures, wasted tokens and staleness by policy version, and
    the trainer's own metrics, which the plug-ins report."""
    return await service.training(run, agent, metric)


@view_router.get("/runs", summary="List runs")
async def list_runs(service: ServiceDep) -> Runs:
    """Runs that `/v1/training` and `/v1/tasks` can show: those of the service's shelf, and of other
    shelves next to it."""
    return await service.lists.runs()


@view_router.get("/tasks", summary="Get a run by task", response_model=TaskRows)
async def list_tasks(query: Annotated[TaskQuery, Query()], service: ServiceDep) -> Response:
    """Success, informative groups, failures and the trend over policy versions, by task."""
    return json_response(await service.lists.tasks(query))


@view_router.get("/agents", summary="List agents")
async def list_agents(service: ServiceDep) -> Agents:
    """The agents: what each is for, the schema of its tasks' `data`, and its tools."""
    agents = service.executor.agents
    return Agents(agents=[describe(agents[name]) for name in agents.names])


@view_router.get(
    "/events",
    summary="Listen to events",
    response_class=StreamingResponse,
    responses={200: {"content": {SSE: {"schema": {"type": "string"}}}}},
)
async def listen(
    service: ServiceDep, last_event_id: Annotated[str | None, Header(max_length=100)] = None
) -> StreamingResponse:
    """Server-sent events for moves of rollouts, new groups, weights and engines. `Last-Event-ID`
    resumes; `reload` means that too much was missed."""
    events = _stream(service.events, last_event_id)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, headers=headers, media_type=SSE)


async def _stream(hub: EventHub, last_event_id: str | None) -> AsyncIterator[bytes]:
    async for batch in hub.listen(last_event_id):
        yield b"".join(map(_event, batch)) or KEEPALIVE_COMMENT


def _event(event: Event) -> bytes:
    data = orjson.dumps(event.data).decode()
    return format_sse_event(data_str=data, event=event.event, id=event.id)


# --- the page -----------------------------------------------------------------------------------


@page_router.api_route("/", methods=["GET", "HEAD"])
def get_index(known: Known = None, encodings: Encodings = "") -> Response:
    try:
        files.check_complete()
    except files.PageIncomplete as error:
        return PlainTextResponse(f"{error}: {error.hint}\n", error.answer_status, HEADERS)
    return _file(files.INDEX, known, encodings)


@page_router.api_route("/page/{name:path}", methods=["GET", "HEAD"])
def get_file(
    name: Annotated[str, Path()], known: Known = None, encodings: Encodings = ""
) -> Response:
    return _file(name, known, encodings)


def _file(name: str, known: str | None, encodings: str) -> Response:
    if (file := files.read(name)) is None:
        raise HTTPException(404, "the page has no such file")
    content, media_type = file
    etag = files.etag(content)
    headers = HEADERS | {"ETag": etag}
    tags = (tag.strip().removeprefix("W/") for tag in (known or "").split(","))
    if any(tag in (etag, "*") for tag in tags):
        return Response(status_code=304, headers=headers)
    if "gzip" in encodings:
        headers["Content-Encoding"], content = "gzip", files.compressed(content)
    return Response(content, media_type=media_type, headers=headers)
