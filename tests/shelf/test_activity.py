"""What an unfinished rollout does, in each stage: in lists, in its own view, and on a terminal."""

import asyncio
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path
from typing import ClassVar

import pytest

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.cli.conversation import show_rollout
from prorl_service.cli.screen import Screen
from prorl_service.client import AsyncRolloutClient
from prorl_service.inference.pool import PoolConfig
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.schemas import BackendSpec, FinishReason, Group, Message, Stage, Task
from prorl_service.schemas.activity import Activity, WaitsFor
from prorl_service.schemas.views import GroupQuery, RolloutQuery
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.agents.bare_agent import BareAgent
from tests.server.application import Settings, connected, group, until

HELD = f"{__name__}:Held"


class Held(BareAgent):
    """An agent that stays where `data` says: in "init", "run", "scoring" or "eval"."""

    name: ClassVar[str] = "held"

    async def init(self, rollout: RolloutContext) -> None:
        await self._stay("init")

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await self._stay("run")
        await rollout.sample(rollout.prompt_ids)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        await self._stay("eval")
        if self.task.data["where"] == "scoring":  # no scoring process is free
            with rollout.attempt.clock.waiting():
                await asyncio.Event().wait()
        return Verdict(1.0)

    async def _stay(self, where: str) -> None:
        if self.task.data["where"] == where:
            await asyncio.Event().wait()


@pytest.fixture
async def engine(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    """Calls bash with a command that does not end, or says a word to the agent `held`."""

    def answer(prompt: list[int]) -> list[int]:
        call = '<tool_call>\n{"name": "bash", "arguments": {"command": "sleep 600"}}\n</tool_call>'
        said = call if "secret" in chat.decode(prompt) else "Yes."
        return [*chat.encode(said), chat.end_of_turn_id]

    async with StubEngine(tiny_model, answer) as stub:
        yield stub


@pytest.fixture
async def client(engine: StubEngine) -> AsyncIterator[AsyncRolloutClient]:
    settings = Settings(
        backends=(BackendSpec(url=engine.url),),
        agents=(HELD,),
        sandbox="bubblewrap",
        pool=PoolConfig(max_calls_per_backend=1),
        pipeline=PipelineConfig(init_workers=1),
    )
    async with connected(settings) as client:
        yield client


def held(where: str, name: str = "g") -> Group:
    message = Message(role="user", content="Stay.")
    task = Task(task_id="t", agent="held", messages=[message], data={"where": where})
    return Group(group_id=name, task=task, n=1)


async def activity_of(client: AsyncRolloutClient, rollout_id: str, waits: WaitsFor) -> Activity:
    """Returns what every view says of the rollout, once it waits for that."""
    query = RolloutQuery(group_id=rollout_id.rpartition(".")[0])

    async def listed() -> Activity | None:
        (row,) = (await client.rollouts(query)).rollouts
        return row.activity

    await until(listed, lambda one: one is not None and one.waits_for is waits)
    text = await client.text(rollout_id)
    found = text.rollout.activity
    assert found is not None
    assert found.waits_for is waits
    assert found.took_s >= found.waits_s > 0
    (row,) = (await client.groups(GroupQuery(group_id=query.group_id))).groups
    assert row.ended_at is None
    screen = StringIO()
    show_rollout(Screen(screen), text)
    assert f"{found.stage.value.upper()} for " in screen.getvalue()
    assert "not made" not in screen.getvalue()
    return found


@pytest.mark.parametrize(
    ("where", "stage"), [("init", Stage.INIT), ("run", Stage.RUN), ("eval", Stage.EVAL)]
)
async def test_code_of_the_agent(client: AsyncRolloutClient, where: str, stage: Stage) -> None:
    await client.submit([held(where)])
    found = await activity_of(client, "g.0", WaitsFor.AGENT)
    assert (found.stage, found.is_queued) == (stage, False)
    assert found.budget_s == getattr(held(where).limits, f"{stage.value}_timeout_s")
    assert found.worked_s > 0


async def test_a_model_call_and_a_slot_at_the_engine(
    client: AsyncRolloutClient, engine: StubEngine
) -> None:
    engine.latency_s = 600
    await client.submit([held("none", "first")])
    first = await activity_of(client, "first.0", WaitsFor.MODEL)
    await client.submit([held("none", "second")])
    second = await activity_of(client, "second.0", WaitsFor.ENGINE)
    assert first.stage is second.stage is Stage.RUN
    assert second.worked_s < second.took_s


async def test_a_tool_call(client: AsyncRolloutClient) -> None:
    await client.submit([group()])
    found = await activity_of(client, "g.0", WaitsFor.TOOL)
    assert (found.stage, found.tool) == (Stage.RUN, "bash")


async def test_the_service_itself(client: AsyncRolloutClient) -> None:
    await client.submit([held("scoring")])
    found = await activity_of(client, "g.0", WaitsFor.SERVICE)
    assert found.stage is Stage.EVAL
    assert found.worked_s < found.took_s


async def test_a_free_worker(client: AsyncRolloutClient) -> None:
    await client.submit([held("init", "first"), held("none", "second")])
    found = await activity_of(client, "second.0", WaitsFor.WORKER)
    assert (found.stage, found.is_queued, found.budget_s) == (Stage.INIT, True, None)


async def test_none_once_it_has_ended(client: AsyncRolloutClient) -> None:
    await client.submit([held("none")])
    await client.wait(["g.0"], 60)
    assert (await client.text("g.0")).rollout.activity is None
