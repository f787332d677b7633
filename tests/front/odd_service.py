"""A foreign service, whose answers about rollouts no service of ours would give."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

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
from prorl_service.testing.loopback import Handler, Loopback
from tests import builders


class OddService(Loopback):
    """A service whose rollouts are done immediately, without a reward."""

    def __init__(self) -> None:
        self.group_ids: set[str] = set()
        """Ids of the groups submitted so far."""
        self.has_engines = False
        self.mixes_results = False
        """Whether the content that it sends is of another run than the summary."""

    def routes(self) -> Mapping[str, Handler]:
        return {
            "/v1/status": self.status,
            "/v1/backends": self.put_backends,
            "/v1/rollouts": self.submit,
            "/v1/rollouts/stream": self.stream,
        }

    async def was_told(self) -> bool:
        return self.has_engines

    async def status(self, _: Request) -> Response:
        told = builders.status(version=__version__, run="odd", workers={Stage.RUN: 2})
        return _answer(told.model_dump_json(), 200)

    async def put_backends(self, _: Request) -> Response:
        self.has_engines = True
        return _answer('{"backends": []}', 200)

    async def submit(self, request: Request) -> Response:
        groups = SubmitRequest.model_validate_json(await request.body()).groups
        self.group_ids |= {one.group_id for one in groups}
        found = [_rollout(one, i, RolloutState.QUEUED) for one in groups for i in range(one.n)]
        return _answer(Rollouts(rollouts=found).model_dump_json(), 202)

    async def stream(self, request: Request) -> Response:
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


def _answer(text: str, status: int) -> Response:
    return Response(text, status, media_type="application/json")


@asynccontextmanager
async def odd_service(announced_at: Path) -> AsyncIterator[OddService]:
    async with OddService() as odd:
        Announcement(announced_at, "127.0.0.1").write(int(odd.url.rpartition(":")[2]))
        yield odd
