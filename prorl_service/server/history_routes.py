"""The routes of the past: the service's load over a day, and trainers' own metrics.

They have no logic of their own.
"""

import time
from typing import Annotated

from fastapi import APIRouter, Query

from prorl_service.schemas.history import History, TrainerStep
from prorl_service.server.routes import TrainingHeader
from prorl_service.server.service import ServiceDep
from prorl_service.shelf.history import HOURS

history_router = APIRouter()


@history_router.get("/history", summary="Get the load of a day", tags=["For people"])
async def get_history(
    service: ServiceDep,
    since: Annotated[
        float,
        Query(description="Unix time in seconds; a negative one counts from now (default: a day)."),
    ] = -HOURS * 3600,
) -> History:
    """Samples of the last 24 hours, one every 10 seconds, also those of earlier processes on the
    same journal. More than 500 come as means of several; of the event loop's delay, the longest."""
    now = time.time()
    began = since if since >= 0 else now + since
    return await service.history.samples(max(began, now - HOURS * 3600))


@history_router.post(
    "/training/steps", summary="Report a trainer's step", tags=["Weights"], status_code=204
)
async def report_step(
    body: TrainerStep, service: ServiceDep, training: TrainingHeader = None
) -> None:
    """Keeps a trainer's own metrics of a step, such as its loss, which `GET /v1/training` returns.
    A 409 from any but the training that holds the policy, once one has claimed it."""
    await service.report_step(body, training)
