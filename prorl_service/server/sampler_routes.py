"""The routes of samplers, which draw informative groups. They have no logic of their own."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi import Path as InPath

from prorl_service.schemas import ID
from prorl_service.schemas.sampling import (
    SAMPLER_ID,
    Candidates,
    DrawSpec,
    SamplerSpec,
    SamplerStatus,
)
from prorl_service.server.access import CallerDep, sign
from prorl_service.server.routes import MAX_WAIT_S, ParentHeader, TrainingHeader, adopt
from prorl_service.server.service import Service, ServiceDep

SamplerPath = Annotated[str, InPath(pattern=SAMPLER_ID)]
DrawPath = Annotated[str, InPath(pattern=ID)]

sampler_router = APIRouter(tags=["Samplers"])


@sampler_router.put("/samplers/{sampler_id}", summary="Create or join a sampler")
async def create_sampler(
    sampler_id: SamplerPath,
    body: SamplerSpec,
    service: ServiceDep,
    training: TrainingHeader = None,
) -> SamplerStatus:
    """Makes a sampler, or joins an equal one. A 409 if it exists with another specification, and
    for a policy that cannot be trained."""
    service.backends.check_trainable()
    _check_training(service, training)
    body.training = body.training or training or service.backends.owner.key
    return await service.samplers.create(sampler_id, body)


@sampler_router.get("/samplers/{sampler_id}", summary="Get a sampler")
async def get_sampler(
    sampler_id: SamplerPath,
    service: ServiceDep,
    after: Annotated[int, Query(description="A revision that is known already.")] = -1,
    wait_s: Annotated[float, Query(ge=0, le=MAX_WAIT_S)] = 0,
) -> SamplerStatus:
    """Answers when the revision differs from `after`, or after `wait_s`."""
    return await service.samplers.get(sampler_id).status(after=after, wait_s=wait_s)


@sampler_router.post("/samplers/{sampler_id}/groups", summary="Add candidates")
async def add_candidates(
    sampler_id: SamplerPath,
    body: Candidates,
    service: ServiceDep,
    caller: CallerDep,
    traceparent: ParentHeader = None,
    training: TrainingHeader = None,
) -> SamplerStatus:
    """Adds candidates, all or none, idempotent by `group_id`."""
    _check_training(service, training)
    sampler = service.samplers.get(sampler_id)
    adopt(body.groups, traceparent, sampler.core.spec.training)
    sign(body.groups, caller)
    return await sampler.add(body.groups, is_last=body.is_last)


@sampler_router.put("/samplers/{sampler_id}/draws/{draw_id}", summary="Open a draw")
async def open_draw(
    sampler_id: SamplerPath,
    draw_id: DrawPath,
    body: DrawSpec,
    service: ServiceDep,
    training: TrainingHeader = None,
) -> SamplerStatus:
    """Opens a draw, idempotent by `draw_id`. A 409 while another is open."""
    _check_training(service, training)
    return await service.samplers.get(sampler_id).draw(draw_id, body)


@sampler_router.delete("/samplers/{sampler_id}", summary="Delete a sampler", status_code=204)
async def delete_sampler(sampler_id: SamplerPath, service: ServiceDep) -> None:
    """Cancels what it began, and forgets groups that were given and not acknowledged."""
    await service.samplers.delete(sampler_id)


def _check_training(service: Service, training: str | None) -> None:
    """Raises `PolicyTaken` and `PolicyUnclaimed` for the caller's training, if it names one."""
    if training is not None:
        service.backends.check_training(training)
