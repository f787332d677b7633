"""Sandboxes that the pipeline announces to their provider before it asks for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.agents.registry import AgentRegistry
from prorl_service.errors import InvalidRequest, TaskError
from prorl_service.inference.pool import BackendPool
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.pipeline.pipeline import Pipeline
from prorl_service.rollouts.journal import Journal
from prorl_service.sandbox.base import ToolResult
from prorl_service.sandbox.warm_pool import WarmPool
from prorl_service.schemas import (
    BackendSpec,
    FinishReason,
    Group,
    Message,
    RolloutState,
    Stage,
    Task,
)
from prorl_service.testing import FakeSandboxes, StubEngine
from tests.pipeline.pipelines import PlainAgent

ONE_BY_ONE = PipelineConfig(init_workers=1, eval_workers=1)


class Waiting(PlainAgent):
    """An agent that opens a sandbox in INIT and another in EVAL, and waits there for the test."""

    name: ClassVar[str] = "waiting"
    sandbox_stages = frozenset({Stage.INIT, Stage.EVAL})
    may_end_init: ClassVar[asyncio.Semaphore]
    may_end_eval: ClassVar[asyncio.Event]
    in_eval: ClassVar[asyncio.Event]
    in_run: ClassVar[asyncio.Event]

    async def init(self, rollout: RolloutContext) -> None:
        await rollout.open_sandbox()
        await Waiting.may_end_init.acquire()

    async def run(self, rollout: RolloutContext) -> FinishReason:
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        Waiting.in_eval.set()
        await Waiting.may_end_eval.wait()
        await rollout.open_sandbox()
        return Verdict(1.0)


class Running(Waiting):
    """An agent that stays in RUN."""

    name: ClassVar[str] = "running"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        Waiting.in_run.set()
        await asyncio.Event().wait()
        raise AssertionError


class NoSandbox(Waiting):
    name: ClassVar[str] = "no-sandbox"
    sandbox_stages = frozenset()


class Sandboxes(FakeSandboxes):
    def check(self, image: str | None) -> None:
        if image == "???":
            raise TaskError("not an image", hint="name another")


@pytest.fixture
def sandboxes() -> FakeSandboxes:
    return Sandboxes(lambda name, arguments: ToolResult(""))


@asynccontextmanager
async def running(
    engine: StubEngine, sandboxes: FakeSandboxes | WarmPool, spool: Path
) -> AsyncIterator[Pipeline]:
    Waiting.may_end_init = asyncio.Semaphore(0)
    Waiting.may_end_eval = asyncio.Event()
    Waiting.in_eval = asyncio.Event()
    Waiting.in_run = asyncio.Event()
    async with BackendPool(spool) as backends:
        await backends.add(BackendSpec(url=engine.url))
        agents = AgentRegistry(
            [f"{__name__}:{name}" for name in ("Waiting", "Running", "NoSandbox")]
        )
        async with (
            Journal() as journal,
            Pipeline(journal, backends, sandboxes, agents, ONE_BY_ONE) as pipeline,
        ):
            yield pipeline


def group(image: str | None, n: int = 1, agent: str = "waiting") -> Group:
    messages = [Message(role="user", content="Go.")]
    task = Task(task_id="t", agent=agent, messages=messages, image=image)
    return Group(group_id=f"g-{image}-{agent}".replace("?", "q"), task=task, n=n)


async def ended(pipeline: Pipeline, groups: list[Group]) -> None:
    ids = [rollout_id for group in groups for rollout_id in group.rollout_ids()]
    rollouts = [ended.to_wire() async for ended in pipeline.ended(ids)]
    assert {rollout.state for rollout in rollouts} == {RolloutState.DONE}


async def all_that_need_not_wait() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def test_a_queue_is_announced_in_order_once_for_each_sandbox(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        groups = [group("a", n=2), group(None), group("c"), group("d", agent="no-sandbox")]
        await pipeline.submit(groups)
        assert sandboxes.expected[-1] == ["a", None, "c"]
        Waiting.may_end_init.release()
        await Waiting.in_eval.wait()
        await all_that_need_not_wait()
        assert sandboxes.expected[-1] == [None, "c"]


async def test_running_rollouts_need_a_sandbox_for_eval_after_all_queued_ones(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        await pipeline.submit([group("a", agent="running"), group("b"), group("c")])
        Waiting.may_end_init.release()
        await Waiting.in_run.wait()
        await all_that_need_not_wait()
        assert sandboxes.expected[-1] == ["c", "a"]


async def test_rollouts_due_for_eval_come_first_and_cancelled_ones_never(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        groups = [group("a"), group("b"), group("c"), group("d")]
        await pipeline.submit(groups)
        Waiting.may_end_init.release()
        await Waiting.in_eval.wait()
        await pipeline.cancel(groups[2].rollout_ids())
        assert sandboxes.expected[-1] == ["d"]
        Waiting.may_end_init.release()
        await all_that_need_not_wait()
        await pipeline.submit([group("e")])
        assert sandboxes.expected[-1] == ["b", "e"]
        Waiting.may_end_eval.set()
        for _ in groups:
            Waiting.may_end_init.release()
        await ended(pipeline, [groups[0], groups[1], groups[3], group("e")])
    assert sandboxes.expected[-1] == []


async def test_an_invalid_image_is_refused_at_submission(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    async with running(engine, sandboxes, tmp_path) as pipeline:
        with pytest.raises(InvalidRequest, match="not an image") as caught:
            await pipeline.submit([group("a"), group("???")])
        assert caught.value.fields[0].field == "groups.1.task.image"
        assert caught.value.hint == "name another"
        assert pipeline.inflight.count_by_state() == {}
        assert not sandboxes.expected
        submitted = group("???", agent="no-sandbox")
        await pipeline.submit([submitted])
        Waiting.may_end_init.release()
        Waiting.may_end_eval.set()
        await ended(pipeline, [submitted])


async def test_rollouts_are_given_warm_sandboxes(
    engine: StubEngine, sandboxes: FakeSandboxes, tmp_path: Path
) -> None:
    pool = WarmPool(sandboxes, spares=3)
    async with running(engine, pool, tmp_path) as pipeline:
        groups = [group(image, n=4) for image in ("a", "b", None)]
        await pipeline.submit(groups)
        for _ in range(12):
            Waiting.may_end_init.release()
        Waiting.may_end_eval.set()
        await ended(pipeline, groups)
    assert pool.running == 0
    assert pool.hits + pool.misses == 24
    assert pool.hits > pool.misses
    await pool.close()
    assert not any(sandbox.running for sandbox in sandboxes.made)
