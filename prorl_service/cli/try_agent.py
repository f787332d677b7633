"""`prorl try`: rollouts of one agent in the foreground, without a trainer or a running service."""

import asyncio
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import uvloop
from cyclopts import Parameter
from cyclopts.types import PositiveInt

from prorl_service.agents.registry import AgentRegistry, registry_with
from prorl_service.cli import try_log
from prorl_service.cli.screen import Screen
from prorl_service.cli.service import DEFAULT_URL, Url
from prorl_service.cli.stop import Stop
from prorl_service.cli.try_display import Display
from prorl_service.cli.try_options import (
    ModelOptions,
    OutputOptions,
    ReplySource,
    TrialOptions,
    overridden,
    read_branch,
    read_task,
    with_program_of,
)
from prorl_service.errors import AgentError, InvalidRequest, ProRLError
from prorl_service.inference.pool import PoolConfig
from prorl_service.schemas import Group, Limits, Rollout, RolloutState, Sampling, Start
from prorl_service.server.service import Service
from prorl_service.server.settings import ServiceSettings, panel
from prorl_service.testing.scripted_engine import ScriptedEngine
from prorl_service.testing.trial import rollouts, trial_service
from prorl_service.utils.runs import new_run
from prorl_service.utils.visible import visible_line


def try_agent(
    agent: str | None = None,
    /,
    *,
    task: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    task_id: Annotated[str | None, Parameter(name="--id")] = None,
    attempts: Annotated[PositiveInt, Parameter(name=("--attempts", "-n"))] = 1,
    harness: str | None = None,
    origin: Annotated[str | None, Parameter(name="--from")] = None,
    turns: PositiveInt | None = None,
    url: Url = DEFAULT_URL,
    output: Annotated[OutputOptions, Parameter(name="*")] = OutputOptions(),
    model: Annotated[ModelOptions, panel("Model")] = ModelOptions(),
    sampling: Annotated[Sampling, panel("Sampling")] = Sampling(),
    limits: Annotated[Limits, panel("Limits")] = Limits(),
    trial: Annotated[TrialOptions, Parameter(name="*")] = TrialOptions(),
) -> int:
    """Run an agent on one task, without a service, and show what happens turn by turn.

    Exits with code 0 if all rollouts are done, 1 if one failed.

    Parameters
    ----------
    agent
        The agent: my_agent.py:MyAgent, package.module:MyAgent, or the name of one such as math
        (default: the task's own).
    task
        JSON file of the task as a trainer sends it, '-' for standard input, the JSON itself, or a
        JSONL file of tasks, such as tasks.jsonl.
    task_id
        The task of a JSONL file (default: the first).
    attempts
        Rollouts of the task, all at the same time.
    harness
        Program in the place of the agent's loop: a preset, such as pi or pi@1.6.0, the TOML file
        of one of your own, or a Python file of yours, such as my_agent.py. The agent prepares the
        sandbox and grades.
    origin
        Rollout of a running service, whose task and first turns are taken. They are replayed: their
        calls are made again, and the policy goes on from there.
    turns
        Number of its turns that are replayed.
    """
    if task == "-" and model.are_typed:
        raise ProRLError("--task - and --replies - both read standard input", hint="name a file")
    source = model.source()
    output.check()
    registry, name = (AgentRegistry(), None) if agent is None else registry_with(agent)
    start: Start | None = None
    if task is not None and origin is None and turns is None:
        given = read_task(task, name, task_id)
    elif task is None and origin is not None and turns is not None:
        given, start = read_branch(url, origin, turns, name)
    else:
        raise ProRLError("give either --task, or --from with --turns")
    group = Group(
        group_id=f"try-{new_run()}",
        task=given.task if harness is None else with_program_of(harness, given.task),
        n=attempts,
        sampling=overridden(given.sampling, sampling),
        limits=overridden(given.limits, limits),
        start=start,
    )
    settings = replace(trial.settings(), pool=PoolConfig(reply_format=model.reply_format))
    try_log.configure(verbose=output.verbose)
    stop = Stop()
    file = sys.stderr if output.json == Path("-") else sys.stdout
    screen = Screen(file, full=output.full, on_hang_up=stop.ask)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ended = runner.run(_tried(registry, group, source, settings, screen, stop))
    output.save(ended)
    stop.end_process()
    return 0 if ended and all(one.state is RolloutState.DONE for one in ended) else 1


async def _tried(
    registry: AgentRegistry,
    group: Group,
    source: ReplySource,
    settings: ServiceSettings,
    screen: Screen,
    stop: Stop,
) -> list[Rollout]:
    """Returns the ended rollouts, by index. Raises `ProRLError`."""
    this_task = asyncio.current_task()
    assert this_task is not None
    stop.does(this_task.cancel)
    try:
        async with (
            source.engines() as (specs, scripted),
            trial_service(registry, specs, settings, parallel=group.n) as service,
        ):
            return await _shown(service, scripted, group, source, screen, stop)
    except asyncio.CancelledError:
        if not stop.is_asked_for:
            raise
        return []
    except (AgentError, InvalidRequest) as error:
        if isinstance(error, AgentError):
            try_log.show_cause(error)
        raise ProRLError(error.message, hint=error.hint) from None


async def _shown(
    service: Service,
    scripted: ScriptedEngine | None,
    group: Group,
    source: ReplySource,
    screen: Screen,
    stop: Stop,
) -> list[Rollout]:
    model = source.describe(service.backends.model.require().name)
    sandboxes = service.sandboxes.kind if service.sandboxes is not None else "none"
    task = group.task
    heading = f"agent {task.agent}, task {task.task_id}, {model}, sandboxes: {sandboxes}"
    screen.line(visible_line(heading, limit=1000), "dim")
    display = Display(screen, group.n, lambda: service.executor.validator.prompt(group).tools)
    service.executor.inflight.observers.add(display)
    await service.submit([group])
    cancel = partial(service.executor.cancel, group.rollout_ids())
    stop.does(lambda: service.background.run_once(cancel(), name="cancel the rollouts"))
    ended: list[Rollout] = []
    async for rollout in rollouts(service, group):
        unused = scripted.unused_replies(rollout.rollout_id) if scripted else 0
        display.result(rollout, unused)
        ended.append(rollout)
    ended.sort(key=lambda one: one.index)
    if group.n > 1:
        display.summary(ended)
    return ended
