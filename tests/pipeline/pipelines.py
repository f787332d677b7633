"""Helpers shared by the tests of the pipeline: one of a test's own agents over a stub engine."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.agents.registry import AgentRegistry
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.pipeline.pipeline import Pipeline
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.journal.tables import Retention
from prorl_service.rollouts.observers import Observer
from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas import BackendSpec, Group, Limits, Message, Rollout, Task
from prorl_service.testing import FakeSandboxes, StubEngine


class PlainAgent(AgentHandler):
    """An agent that asks what its task says, and gives each rollout the reward 1."""

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None: ...

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(1.0)


FAST_PROBES = PoolConfig(probe_interval_s=0.1, wait_for_backend_s=20)


@asynccontextmanager
async def pipeline_of(
    agents: Sequence[type[AgentHandler]],
    engine: StubEngine,
    directory: Path,
    config: PipelineConfig = PipelineConfig(),
    pool_config: PoolConfig = FAST_PROBES,
    **others: Any,
) -> AsyncIterator[Pipeline]:
    """Runs a pipeline over `engine`; `others` are options of `pipeline_over`."""
    async with BackendPool(directory / "weights", pool_config) as backends:
        await backends.add(BackendSpec(url=engine.url))
        async with pipeline_over(backends, agents, config, **others) as pipeline:
            yield pipeline


@asynccontextmanager
async def pipeline_over(
    backends: BackendPool,
    agents: Sequence[type[AgentHandler]],
    config: PipelineConfig = PipelineConfig(),
    journal: Path | None = None,
    retention: Retention = Retention(),
    sandboxes: FakeSandboxes | None = None,
    max_unfinished: int = 50_000,
    observers: Sequence[Observer] = (),
) -> AsyncIterator[Pipeline]:
    sandboxes = sandboxes or FakeSandboxes(lambda name, arguments: ToolResult(""))
    registry = AgentRegistry(f"{agent.__module__}:{agent.__qualname__}" for agent in agents)
    async with Journal(journal, retention=retention) as open_journal:
        pipeline = Pipeline(
            open_journal, backends, sandboxes, registry, config, max_unfinished=max_unfinished
        )
        for observer in observers:
            pipeline.inflight.observers.add(observer)
        async with pipeline:
            yield pipeline


def group_of(
    agent: type[AgentHandler],
    group_id: str = "g",
    n: int = 1,
    limits: Limits = Limits(),
    **data: JsonValue,
) -> Group:
    messages = [Message(role="user", content="Go.")]
    task = Task(task_id="t", agent=agent.name, messages=messages, data=data)
    return Group(group_id=group_id, task=task, n=n, limits=limits)


async def ends(pipeline: Pipeline, *groups: Group) -> list[Rollout]:
    """Submits the groups; returns their ended rollouts, in order of group and index."""
    await pipeline.submit(groups)
    rollout_ids = [one for group in groups for one in group.rollout_ids()]
    ended = {one.rollout_id: one async for one in taken(pipeline, rollout_ids)}
    return [ended[one] for one in rollout_ids]


async def taken(pipeline: Pipeline, rollout_ids: Sequence[str]) -> AsyncIterator[Rollout]:
    async for ended in pipeline.ended(rollout_ids):
        yield ended.to_wire()
