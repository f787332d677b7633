"""Rollout services in one process that cost next to nothing, so that a front's own cost shows.

`python -m bench.nodes.stubs DIRECTORY COUNT`: each service listens on a port of its own and is
announced in DIRECTORY. A rollout ends `LATENCY_S` after it was submitted, with as many sampled
tokens as its task says. `GET /report` has the requests that all services have got, by kind.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import zstandard
from aiohttp import web

from prorl_service.front.discovery import Announcement
from prorl_service.rollouts.record import content_of, summary_of
from prorl_service.schemas import (
    Backends,
    BackendStatus,
    Figures,
    OwnedBackends,
    Rollout,
    RolloutIds,
    Rollouts,
    RolloutState,
    Stage,
    StreamForm,
    StreamRequest,
    SubmitRequest,
)
from prorl_service.server.routes import COMPRESSION
from tests import builders

LATENCY_S = 0.2
SLOTS = 4096
PROMPT_TOKENS = 300
RESULT_ID = "made"
MAX_TEXT = 4000
"""Characters of the largest turn's text."""


@cache
def content(tokens: int) -> tuple[Figures, bytes]:
    """Returns what a rollout of one turn of that many tokens ends with; made once, so all are one
    result."""
    sampled = builders.segment(
        [1] * tokens,
        version=0,
        prompt_ids=list(range(PROMPT_TOKENS)),
        response_ids=[(7 * i) % 150_000 for i in range(tokens)],
        logprobs=[-((i * 2654435761) % 1_000_003) / 1e6 for i in range(tokens)],
    )
    text = "x" * min(4 * tokens, MAX_TEXT)
    whole = builders.rollout("g.0", sampled, turns=1, text=text, result_id=RESULT_ID)
    assert whole.trajectory is not None
    return Figures.of(whole.trajectory), content_of(whole)


def rollout(rollout_id: str, state: RolloutState) -> Rollout:
    return builders.rollout(
        rollout_id, agent="calls", state=state, attempt=1, created_at=time.time()
    )


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StubService:
    seen: ClassVar[Counter[str]] = Counter()
    """Requests to all services, by kind."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[int, float]] = {}
        """Tokens of each group, and when it ends."""
        self._backends: list[BackendStatus] = []

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**26, middlewares=[self._count])
        app.router.add_get("/v1/status", self._status)
        app.router.add_put("/v1/backends", self._put_backends)
        app.router.add_post("/v1/rollouts", self._submit)
        app.router.add_post("/v1/rollouts/stream", self._stream)
        app.router.add_post("/v1/rollouts/cancel", self._cancel)
        app.router.add_post("/v1/groups/acknowledge", self._acknowledge)
        app.router.add_get("/report", self._report)
        return app

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.seen[f"{request.method} {request.path}"] += 1
        return await handler(request)

    async def _report(self, _: web.Request) -> web.Response:
        return web.json_response(self.seen)

    async def _status(self, _: web.Request) -> web.Response:
        known = {"agents": ["calls"], "workers": {Stage.RUN: SLOTS}, "backends": self._backends}
        return answer(builders.status(**known).model_dump_json())

    async def _put_backends(self, request: web.Request) -> web.Response:
        wanted = OwnedBackends.model_validate_json(await request.read())
        known: dict[str, Any] = {"max_model_len": 2**18, "owner": wanted.owner}
        self._backends = [
            builders.backend(backend_id=one.url.partition("//")[2], url=one.url, **known)
            for one in wanted.backends
        ]
        return answer(Backends(backends=self._backends).model_dump_json())

    async def _submit(self, request: web.Request) -> web.Response:
        groups = SubmitRequest.model_validate_json(await request.read()).groups
        for one in groups:
            tokens = int(str(one.task.data["tokens"]))
            self._groups[one.group_id] = (tokens, time.monotonic() + LATENCY_S)
        queued = RolloutState.QUEUED
        found = [rollout(one.rollout_id(i), queued) for one in groups for i in one.indices]
        return answer(Rollouts(rollouts=found).model_dump_json(), 202)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        body = StreamRequest.model_validate_json(await request.read())
        response = web.StreamResponse(headers={"Content-Encoding": "zstd"})
        await response.prepare(request)
        packer = zstandard.ZstdCompressor(compression_params=COMPRESSION).compressobj()
        for one in body.rollout_ids:
            summary, made = await self._ended(one)
            lines = [summary, made] if body.form is StreamForm.PARTS else [summary]
            await response.write(packer.compress(b"\n".join([*lines, b""])))
            await response.write(packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        return response

    async def _ended(self, rollout_id: str) -> tuple[bytes, bytes]:
        """Returns the parts of a rollout once it has ended."""
        tokens, ends_at = self._groups[rollout_id.rpartition(".")[0]]
        await asyncio.sleep(max(0, ends_at - time.monotonic()))
        figures, made = content(tokens)
        done = rollout(rollout_id, RolloutState.DONE)
        ended = {"reward": 1.0, "figures": figures, "result_id": RESULT_ID}
        return summary_of(done.model_copy(update=ended)), made

    async def _cancel(self, request: web.Request) -> web.Response:
        RolloutIds.model_validate_json(await request.read())
        return answer(Rollouts(rollouts=[]).model_dump_json())

    async def _acknowledge(self, request: web.Request) -> web.Response:
        for one in (await request.json())["group_ids"]:
            self._groups.pop(one, None)
        return web.Response(status=204)


def answer(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="application/json")


async def main(directory: Path, count: int) -> None:
    for number in range(count):
        runner = web.AppRunner(StubService().application(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        announced = Announcement(directory / f"s{number:04d}.json", "127.0.0.1")
        announced.write(runner.addresses[0][1])
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
