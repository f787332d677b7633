"""A foreign service, whose answers about rollouts no service of ours would give."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from prorl_service import __version__
from prorl_service.front.discovery import Announcement
from prorl_service.rollouts.record import content_of, summary_of
from prorl_service.schemas import (
    Group,
    Rollout,
    Rollouts,
    RolloutState,
    Stage,
    SubmitRequest,
)
from tests import builders


@dataclass(slots=True)
class OddService:
    """A service whose rollouts are done immediately, without a reward."""

    group_ids: set[str] = field(default_factory=set)
    """Ids of the groups submitted so far."""
    has_engines: bool = False
    mixes_results: bool = False
    """Whether the content that it sends is of another run than the summary."""

    async def was_told(self) -> bool:
        return self.has_engines

    async def status(self, _: web.Request) -> web.Response:
        told = builders.status(version=__version__, run="odd", workers={Stage.RUN: 2})
        return _answer(told.model_dump_json(), 200)

    async def put_backends(self, _: web.Request) -> web.Response:
        self.has_engines = True
        return web.json_response({"backends": []})

    async def submit(self, request: web.Request) -> web.Response:
        groups = SubmitRequest.model_validate_json(await request.read()).groups
        self.group_ids |= {one.group_id for one in groups}
        found = [_rollout(one, i, RolloutState.QUEUED) for one in groups for i in range(one.n)]
        return _answer(Rollouts(rollouts=found).model_dump_json(), 202)

    async def stream(self, request: web.Request) -> web.Response:
        ids = (await request.json())["rollout_ids"]
        lines = [line for one in ids for line in self._parts(_line(one))]
        return _answer(b"".join(lines).decode(), 200)

    def _parts(self, summary: Rollout) -> tuple[bytes, bytes]:
        """Returns lines with the rollout's summary and its content."""
        content = summary
        if self.mixes_results:
            summary = summary.model_copy(update={"reward": 1.0})
            content = summary.model_copy(update={"result_id": "of_another_run"})
        return summary_of(summary) + b"\n", content_of(content) + b"\n"


def _rollout(group: Group, index: int, state: RolloutState) -> Rollout:
    return _line(group.rollout_id(index)).model_copy(update={"state": state})


def _line(rollout_id: str) -> Rollout:
    return builders.rollout(rollout_id, agent="scored", result_id="of_another_kind")


def _answer(text: str, status: int) -> web.Response:
    return web.Response(text=text, status=status, content_type="application/json")


@asynccontextmanager
async def odd_service(announced_at: Path) -> AsyncIterator[OddService]:
    odd = OddService()
    app = web.Application()
    app.router.add_get("/v1/status", odd.status)
    app.router.add_put("/v1/backends", odd.put_backends)
    app.router.add_post("/v1/rollouts", odd.submit)
    app.router.add_post("/v1/rollouts/stream", odd.stream)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    Announcement(announced_at, "127.0.0.1").write(runner.addresses[0][1])
    try:
        yield odd
    finally:
        await runner.cleanup()
