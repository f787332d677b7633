"""Groups of rollouts with scripted replies, in a service of this process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from prorl_service.agents.registry import AgentRegistry
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.schemas import Group, Limits, Message, Rollout, Task
from prorl_service.server.compose import rollout_service
from prorl_service.server.service import Service
from prorl_service.server.settings import (
    OpenEnvOptions,
    RunOptions,
    SandboxOptions,
    ServiceSettings,
)
from prorl_service.testing.replies import Reply, call
from prorl_service.testing.scripted_engine import ScriptedEngine, scripted_engine
from prorl_service.testing.trial import rollouts
from tests.parts import trajectory_of


def settings(*servers: str, attempts: int = 1, wait_s: float = 60.0) -> ServiceSettings:
    """`servers`: NAME=URL of each."""
    return ServiceSettings(
        run=RunOptions(journal="none"),
        sandboxes=SandboxOptions(sandbox="process", warm_sandboxes=0),
        pipeline=PipelineConfig(init_workers=16, ready_rollouts=16, max_attempts=attempts),
        openenv=OpenEnvOptions(openenv=servers, openenv_wait_s=wait_s),
    )


def group(n: int = 1, *, limits: Limits | None = None, **data: Any) -> Group:
    task = Task(
        task_id="task",
        agent="openenv",
        messages=[Message(role="user", content="Begin.")],
        data=data,
    )
    return Group(group_id="group", task=task, n=n, limits=limits or Limits())


def guesses(*numbers: int) -> list[Reply]:
    """Returns replies that each guess a number, and words after them."""
    return [*(call("step", number=number) for number in numbers), "I give up."]


@asynccontextmanager
async def served(
    settings: ServiceSettings, scripts: Sequence[Sequence[Reply]]
) -> AsyncIterator[tuple[Service, ScriptedEngine]]:
    async with (
        scripted_engine(scripts) as engine,
        rollout_service(settings, agents=AgentRegistry()) as service,
    ):
        await service.add_backend(engine.spec)
        yield service, engine


async def played(
    settings: ServiceSettings, group: Group, scripts: Sequence[Sequence[Reply]]
) -> list[Rollout]:
    """Returns the ended rollouts by index. Rollouts take turns with the scripts."""
    async with served(settings, scripts) as (service, _):
        await service.submit([group])
        ended = [rollout async for rollout in rollouts(service, group)]
    return sorted(ended, key=lambda one: one.index)


def outputs(rollout: Rollout) -> list[str]:
    return [record.output for turn in trajectory_of(rollout).turns for record in turn.tool_calls]
