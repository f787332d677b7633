"""`prorl harbor`: task directories in Harbor's format, checked, run, and made into data sets."""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.types import PositiveInt
from rich.console import Console
from rich.table import Table

from prorl_service.agents.harbor.directory.checks import NOTHING, ORACLE, Outcome, faults
from prorl_service.agents.harbor.directory.preparation import PreparingAgent, prepared
from prorl_service.agents.harbor.directory.reading import TaskDirectory
from prorl_service.agents.registry import AgentRegistry
from prorl_service.cli.harbor_runs import Candidate, evaluate, probe_all
from prorl_service.cli.presets import known
from prorl_service.cli.try_options import ModelOptions
from prorl_service.client.harness import with_harness
from prorl_service.client.pass_at_k import chance
from prorl_service.errors import InvalidRequest, ProRLError
from prorl_service.inference.pool import PoolConfig
from prorl_service.schemas import Limits, Rollout, Sampling, Task
from prorl_service.schemas.numbers import mean_of
from prorl_service.server.settings import SandboxOptions, ServiceSettings, panel
from prorl_service.utils.visible import visible_line

harbor = App(name="harbor", help="Check, run and prepare tasks in Harbor's format.")

Directories = Annotated[tuple[Path, ...], Parameter(help="Task directories, or parents of some.")]
Variables = Annotated[
    tuple[str, ...],
    Parameter(name="--env", metavar="NAME=VALUE", help="Variable of the host that tasks name."),
]
Parallel = Annotated[PositiveInt, Parameter(name=("--parallel", "-j"), help="Rollouts at a time.")]
Sandboxes = Annotated[SandboxOptions, panel("Sandboxes")]


@harbor.command
def check(
    *directories: Path,
    parallel: Parallel = 2,
    output: Annotated[Path | None, Parameter(name="--json", help="File for the results.")] = None,
    env: Variables = (),
    sandboxes: Sandboxes = SandboxOptions(),
) -> int:
    """Check that tasks are sound: the solution gets 1, doing nothing does not, cheats gain nothing.

    Exits with code 0 if all tasks are, else with 1.
    """
    found = read_all(directories, env)
    settings = ServiceSettings(sandboxes=replace(sandboxes, warm_sandboxes=0))
    candidates = [Candidate(one, one.task()) for one in found]
    results = asyncio.run(probe_all(candidates, settings, parallel=parallel, say=_say))
    problems = {one.name: faults(results[one.name]) for one in found}
    _show_checks(results, problems)
    if output is not None:
        output.write_text(json.dumps(_as_json(results, problems), indent=1) + "\n")
    return 1 if any(problems.values()) else 0


@harbor.command
def run(
    *directories: Path,
    attempts: Annotated[PositiveInt, Parameter(name=("--attempts", "-n"))] = 1,
    parallel: Parallel = 4,
    harness: Annotated[str | None, Parameter(help="Program in the loop's place.")] = None,
    output: Annotated[Path | None, Parameter(name="--json", help="File for rollouts.")] = None,
    env: Variables = (),
    model: Annotated[ModelOptions, panel("Model")] = ModelOptions(),
    sampling: Annotated[Sampling, panel("Sampling")] = Sampling(),
    limits: Annotated[Limits, panel("Limits")] = Limits(eval_timeout_s=3600, max_turns=64),
    sandboxes: Sandboxes = SandboxOptions(),
) -> int:
    """Evaluate a model on tasks: success at the first attempt, and at any of several."""
    found = read_all(directories, env)
    tasks = [one.task() for one in found]
    if harness is not None:
        program = known(harness)
        tasks = [with_harness(task, program) for task in tasks]
    settings = ServiceSettings(
        pool=PoolConfig(reply_format=model.reply_format), sandboxes=sandboxes
    )
    work = evaluate(
        tasks,
        AgentRegistry(),
        model.source(),
        settings,
        attempts=attempts,
        parallel=parallel,
        sampling=sampling,
        limits=limits,
        say=_say,
    )
    ended = asyncio.run(work)
    if output is not None:
        output.write_text("".join(f"{one.model_dump_json()}\n" for one in ended))
    _show_scores(tasks, ended, attempts)
    return 0


@harbor.command
def tasks(
    *directories: Path,
    output: Annotated[Path, Parameter(name=("--output", "-o"), help="File, a task a line.")],
    env: Variables = (),
) -> None:
    """Write tasks as trainers send them, for a data set; their files go into the cache.

    This machine and the service share the cache: set the same $PRORL_CACHE.
    """
    found = read_all(directories, env)
    lines = [one.task().model_dump_json(exclude_defaults=True) for one in found]
    output.write_text("".join(f"{line}\n" for line in lines))
    _say(f"{len(lines)} tasks in {output}")


@harbor.command
def prepare(
    *directories: Path,
    output: Annotated[Path, Parameter(name=("--output", "-o"), help="File, a task a line.")],
    parallel: Parallel = 2,
    env: Variables = (),
    sandboxes: Sandboxes = SandboxOptions(),
) -> int:
    """Keep in the images what verifiers fetch from the network, so that training needs none.

    Runs each solution and its verifier once with the network that the task asks for, then again
    without. Writes the tasks that still give their solution a 1 and nothing else, as `tasks` does.
    """
    found = read_all(directories, env)
    options = replace(sandboxes, warm_sandboxes=0)
    candidates = [Candidate(one, one.task()) for one in found]
    with_network = ServiceSettings(sandboxes=replace(options, task_network=True))
    PreparingAgent.fetched.clear()
    fetching = probe_all(
        candidates,
        with_network,
        parallel=parallel,
        say=_say,
        agent=PreparingAgent,
        only=(ORACLE,),
    )
    asyncio.run(fetching)
    done = [_prepared(one) for one in candidates]
    offline = ServiceSettings(sandboxes=options)
    results = asyncio.run(
        probe_all(done, offline, parallel=parallel, say=_say, only=(ORACLE, NOTHING))
    )
    problems = {one.name: faults(results[one.name]) for one in found}
    _show_checks(results, problems)
    sound = [one.task for one in done if not problems[one.directory.name]]
    output.write_text("".join(f"{one.model_dump_json(exclude_defaults=True)}\n" for one in sound))
    _say(f"{len(sound)} of {len(done)} tasks in {output}")
    return 1 if any(problems.values()) else 0


def _prepared(one: Candidate) -> Candidate:
    fetched = PreparingAgent.fetched.get(one.task.task_id, [])
    for step in fetched:
        hosts = ", ".join(f"{host} ({count})" for host, count in step.hosts.items())
        size = f"{step.files} files, {len(step.tar) / 1e6:.1f} MB"
        _say(f"{one.directory.name}: kept {size}; hosts: {hosts or 'none'}")
    return Candidate(one.directory, prepared(one.directory, one.task, fetched))


def read_all(directories: Sequence[Path], env: Sequence[str] = ()) -> list[TaskDirectory]:
    """Reads task directories, and those in directories of them. Raises `ProRLError`."""
    if not directories:
        raise InvalidRequest.of_field("directories", "name at least one task directory")
    variables = dict(_variable(one) for one in env)
    found = [
        TaskDirectory.read(path, variables) for one in directories for path in _task_paths(one)
    ]
    if len({one.name for one in found}) < len(found):
        raise ProRLError("two task directories have the same name")
    for one in found:
        if unknown := one.unknown_keys():
            _say(f"{one.path}/task.toml: left out, as by Harbor: {', '.join(unknown)}")
    return found


def _task_paths(directory: Path) -> Iterator[Path]:
    if (directory / "task.toml").exists():
        yield directory
        return
    inner = sorted(one.parent for one in directory.glob("*/task.toml"))
    if not inner:
        raise ProRLError(f"{directory} has no task.toml, nor has a directory in it")
    yield from inner


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest.of_field("--env", f"{text!r}: write it as NAME=VALUE")
    return name, value


def _say(line: str) -> None:
    print(visible_line(line, limit=2000), file=sys.stderr, flush=True)


# --- tables ---------------------------------------------------------------------------------------


def _show_checks(results: dict[str, list[Outcome]], problems: dict[str, list[str]]) -> None:
    names = list(dict.fromkeys(one.probe for some in results.values() for one in some))
    table = Table("task", *names, "verdict", box=None)
    for task, outcomes in results.items():
        rewards = {one.probe: one.reward for one in outcomes}
        cells = [_cell(rewards.get(name)) if name in rewards else "" for name in names]
        table.add_row(task, *cells, "sound" if not problems[task] else "; ".join(problems[task]))
    _console().print(table)


def _cell(reward: float | None) -> str:
    return "error" if reward is None else f"{reward:g}"


def _as_json(
    results: dict[str, list[Outcome]], problems: dict[str, list[str]]
) -> list[dict[str, object]]:
    return [
        {
            "task": task,
            "problems": problems[task],
            "probes": [
                {
                    "name": one.probe,
                    "reward": one.reward,
                    "problem": one.problem,
                    "refused": list(one.refused),
                }
                for one in outcomes
            ],
        }
        for task, outcomes in results.items()
    ]


def _show_scores(tasks: Sequence[Task], ended: Sequence[Rollout], attempts: int) -> None:
    by_task = {
        task.task_id: [one for one in ended if one.task_id == task.task_id] for task in tasks
    }
    table = Table("task", "solved", "reward", "failed", box=None)
    solved = {}
    for task, rollouts in by_task.items():
        rewards = [one.reward for one in rollouts if one.reward is not None]
        solved[task] = sum(reward >= 1 for reward in rewards)
        mean = f"{mean_of(rewards):.3f}" if rewards else "-"
        failed = len(rollouts) - len(rewards)
        table.add_row(task, f"{solved[task]}/{len(rollouts)}", mean, str(failed) if failed else "")
    console = _console()
    console.print(table)
    for k in dict.fromkeys((1, attempts)):
        share = fmean(chance(attempts, count, k) for count in solved.values())
        console.print(f"pass@{k}: {share:.3f} of {len(solved)} tasks, {attempts} attempts each")


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=1000)
