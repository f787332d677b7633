"""Rollouts of `prorl harbor`, by a service inside this process."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from prorl_service.agents.harbor.directory.checks import (
    VARIANTS,
    Outcome,
    oracle,
    others,
    passes,
    probed,
    variants,
)
from prorl_service.agents.harbor.directory.reading import TaskDirectory
from prorl_service.agents.harbor.probes import Probe, ProbeAgent
from prorl_service.agents.registry import AgentRegistry
from prorl_service.cli.try_options import ReplySource
from prorl_service.schemas import Group, Limits, Rollout, Sampling, Task
from prorl_service.server.service import Service
from prorl_service.server.settings import ServiceSettings
from prorl_service.testing.scripted_engine import scripted_engine
from prorl_service.testing.trial import trial_service

DONE = "Done."
LONGEST_S = 24 * 3600.0
"""Budget of each stage of a probe: the task's own limits end it."""

_ID = re.compile(r"[^A-Za-z0-9_.-]+")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HarborCandidate:
    """A task, with the directory that it is of."""

    directory: TaskDirectory
    task: Task


Results = dict[str, list[Outcome]]
"""Rewards of probes, keyed by the names of tasks."""


async def study(
    candidates: Sequence[HarborCandidate],
    settings: ServiceSettings,
    *,
    parallel: int,
    say: Say,
    agent: type[ProbeAgent] = ProbeAgent,
) -> tuple[list[HarborCandidate], Results]:
    """Runs the solutions. Returns the candidates with what those need that do not pass as they are,
    and what the solutions got. Raises `ProRLError`."""

    async def ran(some: Sequence[HarborCandidate]) -> Results:
        return await probe_all(some, oracle, settings, parallel=parallel, say=say, agent=agent)

    first = await ran(candidates)
    chosen, results = list(candidates), dict(first)
    for number in range(VARIANTS):
        tried = {}
        for index, one in enumerate(candidates):
            outcomes = results[one.directory.name]
            if outcomes and not passes(outcomes[0]):
                task = list(variants(one.task, first[one.directory.name][0]))[number]
                if task != one.task:
                    tried[index] = HarborCandidate(one.directory, task)
        again = await ran([*tried.values()]) if tried else {}
        for index, one in tried.items():
            if passes(again[one.directory.name][0]):
                chosen[index], results[one.directory.name] = one, again[one.directory.name]
    return chosen, results


async def check_all(
    candidates: Sequence[HarborCandidate], settings: ServiceSettings, *, parallel: int, say: Say
) -> tuple[list[HarborCandidate], Results]:
    """Returns the candidates with what their solutions need, and what all probes got. Raises
    `ProRLError`."""
    chosen, results = await study(candidates, settings, parallel=parallel, say=say)
    rest = await probe_all(chosen, others, settings, parallel=parallel, say=say)
    return chosen, {name: [*found, *rest[name]] for name, found in results.items()}


async def probe_all(
    candidates: Sequence[HarborCandidate],
    probes: Callable[[TaskDirectory], Sequence[Probe]],
    settings: ServiceSettings,
    *,
    parallel: int,
    say: Say,
    agent: type[ProbeAgent] = ProbeAgent,
) -> Results:
    """Returns what the probes of each task got. Raises `ProRLError`."""
    registry = AgentRegistry()
    registry.add(agent, "prorl harbor")
    limits = Limits(init_timeout_s=LONGEST_S, run_timeout_s=LONGEST_S, eval_timeout_s=LONGEST_S)
    groups: dict[str, tuple[str, str]] = {}
    submitted = []
    for number, one in enumerate(candidates):
        for probe in probes(one.directory):
            group_id = f"{number}-{_ID.sub('-', probe.name)}"
            groups[group_id] = one.directory.name, probe.name
            task = probed(one.task, probe, agent.name)
            submitted.append(Group(group_id=group_id, task=task, limits=limits))
    results: Results = {one.directory.name: [] for one in candidates}
    steps = max((len(one.directory.toml.steps) for one in candidates), default=1)
    async with (
        scripted_engine([[DONE] * max(1, steps)]) as engine,
        trial_service(registry, [engine.spec], settings, parallel=parallel) as service,
    ):
        for rollout in await _ended(service, submitted, say):
            name, probe_name = groups[rollout.group_id]
            results[name].append(_outcome(probe_name, rollout))
    return results


def _outcome(probe: str, rollout: Rollout) -> Outcome:
    error = rollout.error
    problem = "" if error is None else "; ".join(filter(None, (error.message, error.hint)))
    reported = (rollout.report or {}).get("steps")
    steps = [one for one in reported if isinstance(one, dict)] if isinstance(reported, list) else []
    refused = [str(path) for step in steps for path in _list(step.get("refused"))]
    absent = [index for index, step in enumerate(steps) if step.get("absent")]
    return Outcome(probe, rollout.reward, problem, refused, absent)


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []


async def evaluate(
    tasks: Sequence[Task],
    registry: AgentRegistry,
    source: ReplySource,
    settings: ServiceSettings,
    *,
    attempts: int,
    parallel: int,
    sampling: Sampling,
    limits: Limits,
    say: Say,
) -> list[Rollout]:
    """Raises `ProRLError`."""
    groups = [
        Group(group_id=f"{number}", task=task, n=attempts, sampling=sampling, limits=limits)
        for number, task in enumerate(tasks)
    ]
    async with (
        source.engines() as (specs, _),
        trial_service(registry, specs, settings, parallel=parallel) as service,
    ):
        return await _ended(service, groups, say)


async def _ended(service: Service, groups: Sequence[Group], say: Say) -> list[Rollout]:
    """Submits groups. Returns their rollouts in order, and says when each has ended."""
    await service.submit(list(groups))
    ids = [rollout_id for group in groups for rollout_id in group.rollout_ids()]
    ended: dict[str, Rollout] = {}
    async for one in service.executor.ended(ids):
        rollout = one.to_wire()
        ended[rollout.rollout_id] = rollout
        what = rollout.error.message if rollout.error else f"reward {rollout.reward:g}"
        say(f"{len(ended)}/{len(ids)} {rollout.task_id} {rollout.group_id}: {what}")
    return [ended[rollout_id] for rollout_id in ids]
