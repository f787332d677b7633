"""The services that a new supervisor finds, whatever an earlier one was doing with them. Needs no
Ray: actors are objects here, and so is the module."""

import asyncio
import importlib
import sys
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from prorl_service.ray.plan import Node, Report, State
from tests.server.application import until

MODULES = ("prorl_service.ray.members", "prorl_service.ray.fleet")


class ActorDied(Exception):
    pass


class KeptService:
    """An actor that keeps a process in `state`, until it is killed."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.is_killed = False
        self.stops = 0
        self.report = SimpleNamespace(remote=self._report)
        self.stop = SimpleNamespace(remote=self._stop)
        self._number = 0

    async def _report(self, seen: int) -> Report:
        while self._number == seen and not self.is_killed:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        if self.is_killed:
            raise ActorDied("killed")
        return Report(number=self._number, state=self.state, since=time.time())

    async def _stop(self) -> None:
        self.stops += 1
        self.becomes(State.STOPPED)

    def becomes(self, state: State) -> None:
        self.state, self._number = state, self._number + 1


@pytest.fixture
def fleet_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    fake = ModuleType("ray")
    errors = SimpleNamespace(ActorDiedError=ActorDied, RayError=OSError)

    def kill(actor: KeptService, *, no_restart: bool) -> None:
        assert no_restart
        actor.is_killed = True

    fake.__dict__.update(exceptions=errors, kill=kill)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "ray", fake)
        for name in MODULES:
            patched.delitem(sys.modules, name, raising=False)
        yield importlib.import_module(MODULES[1])
        for name in MODULES:
            sys.modules.pop(name)


def node(name: str) -> Node:
    return Node(f"id of {name}", "127.0.0.1", name, is_head=False)


def fleet_of(module: ModuleType, start: object, find: object) -> Any:
    actors = {"start_service": start, "find_service": find, "announce": lambda: None}
    return module.Fleet(SimpleNamespace(**actors))


@pytest.mark.parametrize("state", [*State])
@pytest.mark.parametrize("wanted", [None, 1])
async def test_a_new_supervisor_replaces_services_that_have_stopped_and_keeps_the_others(
    fleet_module: ModuleType, state: State, wanted: int | None
) -> None:
    found = KeptService(state)
    started: list[KeptService] = []

    def start(_: Node) -> KeptService:
        started.append(KeptService(State.SERVING))
        return started[-1]

    def find(_: Node) -> KeptService | None:
        return None if found.is_killed else found

    fleet = fleet_of(fleet_module, start, find)
    nodes = [node("a")]
    fleet.look(nodes, wanted)
    (member,) = fleet.members
    await until_seen(member, found)
    fleet.look(nodes, wanted)
    assert found.is_killed is (state is State.STOPPED)
    assert found.stops == 0, "a second signal would end the drain"
    if state is State.STOPPING:
        assert member.is_draining
        assert not started
        found.becomes(State.STOPPED)
        await until_seen(member, found)
        fleet.look(nodes, wanted)
        assert found.is_killed
    if state in (State.STOPPING, State.STOPPED):
        await until_gone(member)
        fleet.look(nodes, wanted)
        assert len(started) == 1
        (member,) = fleet.members
        assert member.actor is started[0]
    assert len(fleet.members) == 1
    assert not fleet.spare


async def test_a_service_in_its_drain_counts_for_none_of_the_wanted(
    fleet_module: ModuleType,
) -> None:
    found = {"id of a": KeptService(State.STOPPING)}
    started: list[Node] = []

    def start(where: Node) -> KeptService:
        started.append(where)
        return KeptService(State.SERVING)

    fleet = fleet_of(fleet_module, start, lambda one: found.get(one.node_id))
    fleet.look([node("a"), node("b")], 0)
    await until_seen(fleet.members[0], found["id of a"])
    fleet.look([node("a"), node("b")], 1)
    assert [one.name for one in started] == ["b"]


async def until_seen(member: object, actor: KeptService) -> None:
    async def is_seen() -> bool:
        return bool(getattr(member, "report").state is actor.state)  # noqa: B009

    await until(is_seen)


async def until_gone(member: object) -> None:
    async def is_gone() -> bool:
        return bool(getattr(member, "is_gone"))  # noqa: B009

    await until(is_gone)
