"""Events: in order, resumable, and of no cost to anybody by a reader that is slow or gone."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.schemas import Group, Message, Task
from prorl_service.schemas.views import Event
from prorl_service.server.app import create_app
from prorl_service.server.service import Service
from prorl_service.server.settings import HttpOptions
from prorl_service.shelf import events
from prorl_service.shelf.events import EventHub
from tests.server.application import Settings, serving
from tests.server.scored_agent import scored
from tests.waits import condition

GROUP = Group(
    group_id="g",
    task=Task(task_id="t", agent="a", messages=[Message(role="user", content="Go.")]),
)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAUSE_S", 0.0)


async def taken(listening: AsyncIterator[list[Event]], count: int) -> list[Event]:
    found: list[Event] = []
    while len(found) < count:
        found += await anext(listening)
    return found


def numbered(hub: EventHub, first: int, last: int) -> None:
    for number in range(first, last):
        hub.accepted(GROUP.model_copy(update={"group_id": f"g{number}"}))


def groups(found: list[Event]) -> list[object]:
    return [one.data["group_id"] for one in found if one.event == "group"]


async def test_a_listener_gets_events_from_now_on() -> None:
    hub = EventHub("run")
    numbered(hub, 0, 3)
    listening = hub.listen(None)
    (hello,) = await anext(listening)
    assert (hello.event, hello.data["run"]) == ("hello", "run")
    numbered(hub, 3, 6)
    assert groups(await taken(listening, 3)) == ["g3", "g4", "g5"]


@pytest.mark.parametrize("seen", range(6))
async def test_a_listener_that_reconnects_misses_and_repeats_nothing(seen: int) -> None:
    hub = EventHub("run")
    first = hub.listen(None)
    (hello,) = await anext(first)
    numbered(hub, 0, 6)
    heard = [hello, *await taken(first, 6)]
    again = await taken(hub.listen(heard[seen].id), 6 - seen)
    assert [one.id for one in again] == [one.id for one in heard[seen + 1 :]]


@pytest.mark.parametrize("last_id", ["", "x", "00000000-5", "00000000-", "-", "é-1", "a-1-1"])
async def test_an_id_of_another_process_is_told_to_reload(last_id: str) -> None:
    hub = EventHub("run")
    numbered(hub, 0, 6)
    listening = hub.listen(last_id)
    (first,) = await anext(listening)
    assert first.event == "reload"
    numbered(hub, 6, 7)
    assert groups(await taken(listening, 1)) == ["g6"]
    assert groups(await taken(hub.listen(first.id), 1)) == ["g6"]


async def test_a_reader_that_is_too_slow_is_told_to_reload_and_costs_no_memory() -> None:
    hub = EventHub("run", size=10)
    listening = hub.listen(None)
    await anext(listening)
    numbered(hub, 0, 3)
    assert groups(await taken(listening, 3)) == ["g0", "g1", "g2"]
    numbered(hub, 3, 1000)
    (reload,) = await anext(listening)
    assert reload.event == "reload"
    assert len(hub._ring) == 10
    numbered(hub, 1000, 1002)
    assert groups(await taken(listening, 2)) == ["g1000", "g1001"]


async def test_changes_of_engines_and_weights_are_events() -> None:
    hub = EventHub("run")
    listening = hub.listen(None)
    await anext(listening)
    for state, version in (("healthy", 0), ("healthy", 0), ("updating", 0), ("healthy", 1)):
        hub.engines_are({"e": (state, version)}, version)
    hub.engines_are({}, 1)
    told = await taken(listening, 5)
    assert [(one.event, one.data.get("state"), one.data["policy_version"]) for one in told] == [
        ("engine", "healthy", 0),
        ("engine", "updating", 0),
        ("engine", "healthy", 1),
        ("weights", None, 1),
        ("engine", None, None),
    ]


async def test_silence_is_broken_by_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.01)
    listening = EventHub("run").listen(None)
    await anext(listening)
    assert await anext(listening) == []


async def test_the_end_is_the_last_event() -> None:
    hub = EventHub("run")
    listening = hub.listen(None)
    await anext(listening)
    numbered(hub, 0, 2)
    hub.close()
    found = [one async for batch in listening for one in batch]
    assert [one.event for one in found] == ["group", "group", "end"]
    assert hub.listeners == 0


# --- over HTTP ----------------------------------------------------------------------------------


async def collected(client: AsyncRolloutClient, last: dict[str, Any], heard: list[Event]) -> None:
    async for event in client.events():
        heard.append(event)
        if last.items() <= event.data.items():
            return


async def test_each_move_of_a_rollout_is_an_event(client: AsyncRolloutClient) -> None:
    heard: list[Event] = []
    last = {"rollout_id": "g.1", "state": "failed"}
    listening = asyncio.create_task(collected(client, last, heard))
    await condition(lambda: bool(heard))
    await client.submit([scored("g", 0.25, None)])
    await listening
    (group,) = (one for one in heard if one.event == "group")
    assert group.data | {"at": 0} == {
        "group_id": "g",
        "task_id": "t",
        "agent": "scored",
        "n": 2,
        "at": 0,
    }
    moves = [one.data["state"] for one in heard if one.data.get("rollout_id") == "g.1"]
    assert moves == ["init", "ready", "running", "evaluating", "failed"]
    assert heard[-1].data["blame"] == "evaluator"
    done = next(one for one in heard if one.data.get("state") == "done")
    assert (done.data["reward"], done.data["policy_version"]) == (0.25, 0)
    numbers = [int((one.id or "").partition("-")[2]) for one in heard]
    assert all(after == before + 1 for before, after in pairwise(numbers))


async def test_a_stream_resumes_where_it_broke_off(client: AsyncRolloutClient) -> None:
    heard: list[Event] = []
    await client.submit([scored("first", 1)])
    listening = asyncio.create_task(collected(client, {"none": 0}, heard))
    await condition(lambda: bool(heard))
    listening.cancel()
    await client.submit([scored("g", 1)])
    await client.wait(["g.0"], 60)
    again: list[str] = []
    async for event in client.events(heard[0].id):
        again.append(str(event.data.get("state")))
        if event.data.get("rollout_id") == "g.0" and event.data["state"] == "done":
            break
    assert again[-5:] == ["init", "ready", "running", "evaluating", "done"]


async def test_listeners_that_hang_up_are_removed(settings: Settings) -> None:
    async with Running(settings) as (service, url):
        async with (
            httpx.AsyncClient(base_url=url) as http,
            http.stream("GET", "/v1/events") as response,
        ):
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["cache-control"] == "no-cache"
            await anext(response.aiter_lines())
            assert service.events.listeners == 1
        await condition(lambda: service.events.listeners == 0)


@pytest.mark.slow
async def test_a_listener_that_reads_nothing_does_not_block_others(settings: Settings) -> None:
    """The connection's buffers are all that it costs."""
    async with Running(settings) as (service, url), AsyncRolloutClient(url) as client:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=16)
        writer.write(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await condition(lambda: service.events.listeners == 1)
        for _ in range(20):
            numbered(service.events, 0, 5000)
            await asyncio.sleep(0)
        assert len(service.events._ring) == events.RING
        await client.submit([scored("g", 1)])
        await client.wait(["g.0"], 60)
        writer.transport.abort()
        assert reader is not None


async def test_an_unreachable_service_is_an_error(url: str) -> None:
    async with AsyncRolloutClient("http://127.0.0.1:9", retry_s=0) as client:
        with pytest.raises(ServiceCallError):
            await anext(client.events())


class Running:
    """A service, and its address."""

    def __init__(self, settings: Settings) -> None:
        self._serving = serving(settings)

    async def __aenter__(self) -> tuple[Service, str]:
        made: list[Service] = []

        def note(service: Service, options: HttpOptions, token: str | None) -> Any:
            made.append(service)
            return create_app(service, options, token)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.server.application.create_app", note)
            url = await self._serving.__aenter__()
        return made[0], url

    async def __aexit__(self, *error: Any) -> None:
        await self._serving.__aexit__(*error)
