"""Routes of version 1 of the interface.

Long polls and streams hold a connection but no state: a client that comes back gets the same
answers. Every error body is an `ErrorResponse`; bad input names the field and starts nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import zstandard
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from prorl_service.errors import InvalidRequest, NotFound
from prorl_service.gateway import doors
from prorl_service.inference.sources import source_at
from prorl_service.rollouts.record import EndedRollout, RolloutRecord
from prorl_service.schemas import (
    ID,
    Backends,
    BackendSpec,
    BackendStatus,
    BroadcastSpec,
    GatewayAccess,
    Group,
    GroupIds,
    NcclGroupSpec,
    NcclGroupStatus,
    OwnedBackends,
    PolicyClaim,
    PolicyLease,
    Rollout,
    RolloutIds,
    Rollouts,
    ServiceStatus,
    StreamedPush,
    StreamForm,
    StreamRequest,
    SubmitRequest,
    TaskChecks,
    TaskProblems,
    WeightsAt,
    WeightsQuery,
    WeightsReport,
    WeightsTerms,
)
from prorl_service.schemas.arrays import PACKED_MEDIA_TYPE
from prorl_service.schemas.tracing import read_traceparent
from prorl_service.server.access import CallerDep, check_own, record, sign
from prorl_service.server.service import Service, ServiceDep, json_response

PusherHeader = Annotated[
    str,
    Header(
        alias="prorl-training",
        pattern=ID,
        description="The training that holds the policy, `TRAINING_ID.PROCESS_ID`.",
    ),
]
KEEP_ALIVE_S = 10.0
"""Seconds between empty lines of a stream that has nothing to send, so that proxies keep it."""

MAX_WAIT_S = 300.0
COMPRESSION = zstandard.ZstdCompressionParameters.from_level(1, window_log=23, enable_ldm=True)
"""The fastest level; 8 MB back it finds what repeats."""
NDJSON = "application/x-ndjson"

ParentHeader = Annotated[
    str | None,
    Header(alias="traceparent", description="W3C trace context of the caller's current span."),
]
TrainingHeader = Annotated[
    str | None,
    Header(
        alias="prorl-training",
        pattern=ID,
        description="The caller's training, `TRAINING_ID.PROCESS_ID`; see `POST /v1/policy`.",
    ),
]

rollout_router = APIRouter(tags=["Rollouts"])
engine_router = APIRouter(tags=["Engines"])
weights_router = APIRouter(tags=["Weights"])
status_router = APIRouter(tags=["Service"])
health_router = APIRouter(tags=["Service"])


@health_router.get("/health", summary="Get its health")
async def health(service: ServiceDep) -> JSONResponse:
    """Answers 200 while all workers live, 503 once one has died; open to all, so nothing more."""
    if service.failure() is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "failed"}, status_code=503)


@status_router.get("/status", summary="Get its status")
async def status(service: ServiceDep) -> ServiceStatus:
    """What it does now: stages, queues, engines, sandboxes, and counts since the start."""
    return service.status()


# --- rollouts -----------------------------------------------------------------------------------


@rollout_router.post("/rollouts", summary="Submit groups", status_code=202, response_model=Rollouts)
async def submit(
    body: SubmitRequest,
    service: ServiceDep,
    caller: CallerDep,
    traceparent: ParentHeader = None,
    training: TrainingHeader = None,
) -> Response:
    """Accepts groups, idempotent by `group_id`: an equal group returns its rollouts, a different
    one a 409. A 409 also for a training that does not hold the policy."""
    adopt(body.groups, traceparent, training)
    sign(body.groups, caller)
    rollouts = await service.submit(body.groups, body.invalid)
    if caller.name is not None:
        record(caller, f"submitted {len(rollouts)} rollouts, the first {rollouts[0].rollout_id}")
    return json_response(Rollouts.model_construct(rollouts=rollouts), 202)


@rollout_router.post("/tasks/check", summary="Check tasks")
async def check_tasks(body: TaskChecks, service: ServiceDep) -> TaskProblems:
    """Checks tasks as a submission would, and submits nothing: agent, data, what they need of this
    service, and the length of the prompt."""
    check = service.executor.validator.problems
    return TaskProblems(problems=await asyncio.to_thread(check, body.tasks, body.sampling))


@rollout_router.get("/rollouts/{rollout_id}", summary="Get a rollout", response_model=Rollout)
async def get_rollout(
    rollout_id: str,
    request: Request,
    service: ServiceDep,
    wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S)] = 0,
    shelf: Annotated[bool, Query(description="False: not one that was acknowledged.")] = True,
) -> Response:
    """Answers when the rollout has ended, or after `wait_s` with the state it is in. One that was
    acknowledged may be on the shelf; a 404 says why it is not."""
    try:
        rollout = await service.executor.get(rollout_id)
    except NotFound:
        if not shelf:
            raise
        rollout = await service.details.ended(rollout_id)
    if wait_s and isinstance(rollout, RolloutRecord):
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                async for _ in service.executor.ended([rollout_id]):
                    pass
        rollout = await service.executor.get(rollout_id)
    packed = _wants_packed(request)
    media_type = PACKED_MEDIA_TYPE if packed else "application/json"
    return Response(rollout.to_json(packed=packed), media_type=media_type)


@rollout_router.post(
    "/rollouts/stream",
    summary="Wait for rollouts",
    response_class=StreamingResponse,
    responses={200: {"content": {NDJSON: {"schema": {"$ref": "#/components/schemas/Rollout"}}}}},
)
async def stream(body: StreamRequest, request: Request, service: ServiceDep) -> StreamingResponse:
    """Streams NDJSON: one rollout a line, as each ends; empty lines keep the connection alive. The
    form `parts` has two lines for each: the summary, and the content, always packed. Compressed for
    clients that accept zstd."""
    await service.executor.check_known(body.rollout_ids)
    ended = service.executor.ended(body.rollout_ids)
    packed = _wants_packed(request)

    def lines_of(rollout: EndedRollout) -> bytes:
        match body.form:
            case StreamForm.PARTS:
                return b"\n".join((*rollout.parts(), b""))
            case StreamForm.SUMMARY:
                return rollout.parts()[0] + b"\n"
        return rollout.to_json(packed=packed) + b"\n"

    lines = _lines(ended, lines_of)
    if "zstd" not in request.headers.get("Accept-Encoding", ""):
        return StreamingResponse(lines, media_type=NDJSON)
    return StreamingResponse(
        _compressed(lines), media_type=NDJSON, headers={"Content-Encoding": "zstd"}
    )


@rollout_router.post("/rollouts/cancel", summary="Cancel rollouts", response_model=Rollouts)
async def cancel(body: RolloutIds, service: ServiceDep, caller: CallerDep) -> Response:
    """Answers when all have ended; those that had ended before stay as they were. A 403 for those
    of others, without the role admin."""
    groups = {rollout_id.rpartition(".")[0] for rollout_id in body.rollout_ids}
    await check_own(caller, groups, service.journal)
    record(caller, f"cancels {len(body.rollout_ids)} rollouts")
    cancelled = await service.journal.unless_failing(service.executor.cancel(body.rollout_ids))
    return json_response(Rollouts.model_construct(rollouts=cancelled))


@rollout_router.get(
    "/rollouts/{rollout_id}/gateway", summary="Get the gateway of a program elsewhere"
)
async def gateway(
    rollout_id: str,
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S)] = 0,
) -> GatewayAccess:
    """Returns where the program of a rollout with `where: outside` finds its model, as soon as the
    rollout is in RUN; a 404 if that is not within `wait_s`."""
    await check_own(caller, [rollout_id.rpartition(".")[0]], service.journal)
    door = await _door(service, rollout_id, wait_s)
    url = f"{str(request.base_url).rstrip('/')}{doors.PREFIX}/{rollout_id}"
    return GatewayAccess(url=url, key=door.key)


@rollout_router.post(
    "/rollouts/{rollout_id}/gateway/end", summary="End a program elsewhere", status_code=204
)
async def end_gateway(rollout_id: str, service: ServiceDep, caller: CallerDep) -> None:
    """Says that the rollout's program has ended: RUN ends, and the rollout is graded."""
    await check_own(caller, [rollout_id.rpartition(".")[0]], service.journal)
    (await _door(service, rollout_id, 0)).ended.set()


async def _door(service: Service, rollout_id: str, wait_s: float) -> doors.Door:
    await service.executor.check_known([rollout_id])
    if service.doors is None:
        raise InvalidRequest(
            "a front has no gateways", hint="ask the service that runs the rollout"
        )
    if (door := await service.doors.find_within(rollout_id, wait_s)) is None:
        raise NotFound(f"rollout {rollout_id} has no gateway now: it is not in RUN")
    return door


@rollout_router.post("/groups/acknowledge", summary="Acknowledge groups", status_code=204)
async def acknowledge(body: GroupIds, service: ServiceDep, caller: CallerDep) -> None:
    """Lets the service forget groups whose rollouts were received. Unknown groups are forgotten
    already; a 409 if one is in flight, a 403 for those of others, without the role admin."""
    await check_own(caller, body.group_ids, service.journal)
    await service.executor.acknowledge(body.group_ids)


def adopt(groups: Iterable[Group], traceparent: str | None, training: str | None) -> None:
    """Gives groups without a parent span or a training of their own those of the request."""
    parent = read_traceparent(traceparent)
    for group in groups:
        group.traceparent = group.traceparent or parent
        group.training = group.training or training


def _wants_packed(request: Request) -> bool:
    return PACKED_MEDIA_TYPE in request.headers.get("accept", "")


async def _compressed(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields each line at once. What a rollout shares with those before it, such as a group's
    prompt, goes over the wire once."""
    packer = zstandard.ZstdCompressor(compression_params=COMPRESSION).compressobj()
    async for line in lines:
        yield packer.compress(line) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    yield packer.flush()


async def _lines(
    ended: AsyncIterator[EndedRollout], lines_of: Callable[[EndedRollout], bytes]
) -> AsyncIterator[bytes]:
    upcoming = asyncio.ensure_future(anext(ended, None))
    try:
        while True:
            done, _ = await asyncio.wait({upcoming}, timeout=KEEP_ALIVE_S)
            if not done:
                yield b"\n"
                continue
            record = upcoming.result()
            if record is None:
                return
            yield lines_of(record)
            upcoming = asyncio.ensure_future(anext(ended, None))
    finally:
        upcoming.cancel()


# --- the policy ---------------------------------------------------------------------------------


@weights_router.post("/policy", summary="Claim the policy")
async def claim_policy(body: PolicyClaim, service: ServiceDep) -> PolicyLease:
    """Gives the policy to a training, or renews its lease: only that pushes weights and registers
    engines of its own, and its groups alone are accepted. A 409 while another training holds it;
    `take_over` ends that one's rollouts. A later process of the same training gets it always."""
    return await service.claim_policy(body)


@weights_router.post("/policy/release", summary="Release the policy", status_code=204)
async def release_policy(service: ServiceDep, training: PusherHeader) -> None:
    """Lets another training have the policy immediately, when this one has ended."""
    await service.release_policy(training)


# --- backends and weights -----------------------------------------------------------------------


@engine_router.get("/backends", summary="List engines")
async def list_backends(service: ServiceDep) -> Backends:
    return Backends(backends=service.backends.statuses())


@engine_router.post("/backends", summary="Add an engine", status_code=201)
async def add_backend(
    body: BackendSpec, service: ServiceDep, caller: CallerDep, training: TrainingHeader = None
) -> BackendStatus:
    """Adds a backend, idempotent by URL: a repetition renews the lease, and updates `lease_s` and
    `max_calls`. The backend takes the newest weights before it serves."""
    body.training = body.training or training
    if all(body.url != one.url for one in service.backends.statuses()):  # not a renewed lease
        record(caller, f"adds the engine {body.url}")
    return await service.add_backend(body)


@engine_router.put("/backends", summary="Replace a front's engines")
async def put_backends(body: OwnedBackends, service: ServiceDep) -> Backends:
    """Adds the engines of a front, or renews their leases, and removes its others. Each may bring a
    report of its state, so that the service need not ask it."""
    return Backends(backends=await service.put_backends(body))


@engine_router.delete("/backends/{backend_id}", summary="Remove an engine")
async def remove_backend(backend_id: str, service: ServiceDep, caller: CallerDep) -> BackendStatus:
    """Removes a backend, whose rollouts continue elsewhere with their next turn."""
    record(caller, f"removes the engine {backend_id}")
    return await service.backends.remove(backend_id)


@weights_router.get("/weights", summary="Ask how to send weights")
async def weights_terms(
    service: ServiceDep, query: Annotated[WeightsQuery, Query()]
) -> WeightsTerms:
    """Returns the form, type and way in which to send the next weights. Refused if an engine takes
    nothing that the trainer can send."""
    return await service.backends.weights.terms(query)


@weights_router.post("/weights/group", summary="Open an NCCL group", status_code=201)
async def open_group(
    body: NcclGroupSpec, service: ServiceDep, training: PusherHeader
) -> NcclGroupStatus:
    """Has all engines join the trainer in an NCCL group for its broadcasts, replacing the last one.
    Answers when they have: the trainer joins at the same time."""
    service.backends.owner.check(training)
    group = await service.backends.weights.open_group(body.init_info)
    return NcclGroupStatus(group=group.group_id, engines=sorted(group.processes))


@weights_router.post("/weights/broadcast", summary="Broadcast weights")
async def broadcast(
    body: BroadcastSpec, service: ServiceDep, caller: CallerDep, training: PusherHeader
) -> WeightsReport:
    """Has all engines receive the weights that the trainer broadcasts at the same time. The service
    does not keep them: an engine that is started again has to wait for the next broadcast."""
    record(caller, f"broadcasts weights for {training}")
    return await service.backends.weights.load_broadcast(
        body.group, body.update_info, body, training=training
    )


@weights_router.post("/weights", summary="Load weights from a path")
async def load_weights(
    body: WeightsAt, service: ServiceDep, caller: CallerDep, training: PusherHeader
) -> WeightsReport:
    """Has all backends load a file that the service can read, or a directory that they can read."""
    record(caller, f"loads weights for {training}")
    source = await asyncio.to_thread(source_at, Path(body.path))
    return await service.backends.weights.load(source, body, training=training)


@weights_router.put("/weights", summary="Send weights")
async def stream_weights(
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    training: PusherHeader,
    push: Annotated[StreamedPush, Query()],
) -> WeightsReport:
    """Takes one safetensors file as the body, with the whole model, or with a LoRA adapter whose
    metadata have PEFT's configuration as `adapter_config`; or the difference of a whole model from
    `base`, refused with 412 if the newest weights are others."""
    record(caller, f"sends weights for {training}")
    return await service.backends.weights.load_stream(request.stream(), push, training=training)
