"""Rollouts of one agent by a service inside this process, without HTTP routes or a journal file.

Stages, budgets, sandboxes and engine calls are those of `prorl serve`. Rollouts are not retried, so
that an author sees the first failure.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from prorl_service.agents.registry import AgentRegistry
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import BackendSpec, Group, Rollout
from prorl_service.server.compose import rollout_service
from prorl_service.server.service import Service
from prorl_service.server.settings import RunOptions, ServiceSettings


@asynccontextmanager
async def trial_service(
    agents: AgentRegistry,
    engines: Sequence[BackendSpec],
    settings: ServiceSettings = ServiceSettings(),
    *,
    parallel: int = 1,
    provider: SandboxProvider | None = None,
) -> AsyncIterator[Service]:
    """Runs a service with `engines`, which must answer, and `parallel` rollouts at a time.

    Raises `ProRLError`, in particular `BackendUnavailable`.
    """
    pipeline = PipelineConfig(
        init_workers=parallel,
        run_workers=parallel,
        eval_workers=parallel,
        ready_rollouts=parallel,
        max_attempts=1,
    )
    settings = replace(settings, run=RunOptions(journal="none"), pipeline=pipeline)
    async with rollout_service(settings, agents=agents, provider=provider) as service:
        for engine in engines:
            await service.add_backend(engine)
        yield service


async def rollouts(service: Service, group: Group) -> AsyncIterator[Rollout]:
    """Yields the rollouts of a submitted group, each as soon as it has ended."""
    async for ended in service.executor.ended(group.rollout_ids()):
        yield ended.to_wire()
