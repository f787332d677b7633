"""Limits of a rollout's gateway: what a hostile program cannot take from the service and others."""

import asyncio
import os
import resource
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import Group, Limits, Message, Rollout, Task
from prorl_service.testing.scripted_engine import ScriptedEngine, scripted_engine
from tests.server.application import Settings, serving

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ATTACKS: dict[str, str] = tomllib.loads(Path(__file__).with_name("attacks.toml").read_text())


@dataclass(frozen=True, slots=True)
class World:
    engine: ScriptedEngine
    client: AsyncRolloutClient

    async def beside_a_victim(self, attack: str) -> tuple[Rollout, Rollout]:
        """Returns the attacker's rollout and the victim's, which ran at the same time."""
        programs = {"attacker": attack, "victim": "victim"}
        groups = [
            Group(group_id=name, task=_task(program), limits=Limits(max_turns=100))
            for name, program in programs.items()
        ]
        self.engine.give("attacker", [["It is \\boxed{1}."] * 60])
        self.engine.give("victim", [[*["Let me think."] * 7, "It is \\boxed{42}."]])
        await self.client.submit(groups)
        attacker, victim = await self.client.wait(["attacker.0", "victim.0"], timeout_s=120)
        return attacker, victim


def _task(name: str) -> Task:
    program = ATTACKS["call"] + ATTACKS[name]
    return Task(
        task_id="t",
        agent="harness",
        messages=[Message(role="user", content="What is 6 * 7?")],
        data={
            "command": ["${python}", "-c", program.replace("$", "$$"), "${url}"],
            "agent": "math",
            "data": {"answer": "42"},
        },
    )


@pytest.fixture(params=["process", "bubblewrap"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with (
        scripted_engine([[]]) as engine,
        serving(Settings(backends=(engine.spec,), sandbox=request.param)) as url,
        AsyncRolloutClient(url) as client,
    ):
        yield World(engine, client)


async def test_a_body_is_refused_while_it_is_read(world: World) -> None:
    before = _peak_mb()
    attacker, victim = await world.beside_a_victim("huge_body")
    assert _peak_mb() - before < 200
    assert victim.reward == 1.0, victim.error
    output = _output(attacker)
    assert output.count("HTTP/1.1 413 ") == 3, output
    assert "the body is larger than" in output


async def test_connections_are_limited_before_anything_is_asked(world: World) -> None:
    with few_descriptors(300):
        async with most_descriptors() as most:
            attacker, victim = await world.beside_a_victim("half_heads")
    assert victim.reward == 1.0, victim.error
    assert attacker.error is None
    assert max(most) - most[0] < 64 + 60


async def test_calls_beyond_those_in_flight_wait(world: World) -> None:
    world.engine.latency_s = 3  # so that a busy machine begins as many
    attacker, victim = await world.beside_a_victim("many_calls")
    assert victim.reward == 1.0, victim.error
    assert attacker.trajectory is not None
    assert len(attacker.trajectory.turns) == 60
    assert 32 <= world.engine.most_in_flight <= 32 + 1  # and the victim's


def _output(rollout: Rollout) -> str:
    assert rollout.report is not None, rollout.error
    harness = rollout.report["harness"]
    assert isinstance(harness, dict)
    return str(harness["output"])


def _peak_mb() -> int:
    """Returns the most memory of this process since the last call."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")  # begins a new peak
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


@contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    """Lets this process open `count` more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_descriptors() + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def most_descriptors() -> AsyncIterator[list[int]]:
    """Collects how many descriptors this process has open."""
    counts = [_descriptors()]

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.02)
            counts.append(_descriptors())

    watching = asyncio.create_task(watch())
    try:
        yield counts
    finally:
        watching.cancel()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
