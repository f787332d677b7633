"""Contents that are elsewhere: followed with the token, only where the front says they are."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from prorl_service.client import AsyncRolloutClient, RolloutClient
from prorl_service.client.locations import Elsewhere, Locations
from prorl_service.local import free_port
from prorl_service.schemas import Rollout, RolloutState, StreamForm

TOKEN = "0123456789abcdef"
IDS = ["g.0", "g.1"]


def rollout(index: int, report: str | None, location: str | None = None) -> Rollout:
    return Rollout(
        rollout_id=f"g.{index}",
        group_id="g",
        task_id="t",
        agent="a",
        index=index,
        state=RolloutState.DONE,
        reward=1.0,
        attempt=3,
        created_at=1.0,
        location=location,
        report=None if report is None else {"from": report},
    )


@dataclass(slots=True)
class Server:
    """A service with all rollouts, or with the `location` of their contents."""

    name: str
    location: str | None = None
    redirects: bool = False
    tokens: list[str | None] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)

    async def get(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("Authorization"))
        if self.redirects:
            raise web.HTTPTemporaryRedirect(f"http://127.0.0.1:{free_port()}/")
        index = int(request.match_info["id"].rpartition(".")[2])
        is_located = "located" in request.query and self.location is not None
        return self._answer(index, is_located=is_located)

    async def stream(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.forms.append(body["form"])
        is_located = body["form"] == StreamForm.LOCATED and self.location is not None
        indices = (int(one.rpartition(".")[2]) for one in body["rollout_ids"])
        lines = (self._answer(one, is_located=is_located).text for one in indices)
        return web.Response(text="\n".join([*map(str, lines), ""]))

    def _answer(self, index: int, *, is_located: bool) -> web.Response:
        one = rollout(index, None, self.location) if is_located else rollout(index, self.name)
        return web.Response(text=one.model_dump_json())


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/v1/rollouts/{id}", server.get)
    app.router.add_post("/v1/rollouts/stream", server.stream)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def read(url: str) -> list[Rollout]:
    """Reads both rollouts with both clients, streamed and one by one."""

    def blocking() -> list[Rollout]:
        with RolloutClient(url, token=TOKEN, retry_s=0) as client:
            return [*client.wait(IDS, 10), *map(client.get, IDS)]

    async with AsyncRolloutClient(url, token=TOKEN, retry_s=0) as client:
        streamed = await client.wait(IDS, 10)
        asked = [await client.get(one) for one in IDS]
    return [*streamed, *asked, *await asyncio.to_thread(blocking)]


async def test_contents_are_read_at_their_location_with_the_token() -> None:
    node, front = Server("node"), Server("front")
    async with running(node) as front.location, running(front) as url:
        found = await read(url)
    assert found == [rollout(index, "node") for index in (0, 1)] * 4
    assert node.tokens == [f"Bearer {TOKEN}"] * 8
    assert set(front.forms) == {StreamForm.LOCATED}


@pytest.mark.parametrize("redirects", [True, False], ids=["redirects", "out of reach"])
async def test_contents_that_cannot_be_read_there_come_through_the_front(
    *, redirects: bool
) -> None:
    node, front = Server("node", redirects=True), Server("front")
    async with running(node) as at_node, running(front) as url:
        front.location = at_node if redirects else f"http://127.0.0.1:{free_port()}"
        found = await read(url)
    assert found == [rollout(index, "front") for index in (0, 1)] * 4
    assert front.forms == [StreamForm.LOCATED, StreamForm.WHOLE] * 2


def test_the_token_of_a_secure_front_is_not_sent_in_the_clear() -> None:
    locations = Locations("https://front")
    with pytest.raises(Elsewhere):
        locations.request(rollout(0, None, "http://node:8080"))
    request = locations.request(rollout(0, None, "https://node:8080"))
    assert request.path == "https://node:8080/v1/rollouts/g.0"
