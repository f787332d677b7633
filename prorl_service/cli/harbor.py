"""`prorl harbor`: task directories in Harbor's format, checked, run, and made into data sets."""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.types import PositiveInt
from rich.table import Table

from prorl_service.agents.harbor.data import HarborData
from prorl_service.agents.harbor.directory.checks import Outcome, absent_steps, faults, with_absent
from prorl_service.agents.harbor.directory.preparation import PreparingAgent, prepared
from prorl_service.agents.registry import AgentRegistry
from prorl_service.cli.harbor_reading import ReadOptions, read_all
from prorl_service.cli.harbor_runs import HarborCandidate, Results, check_all, evaluate, study
from prorl_service.cli.harnesses import known
from prorl_service.cli.program import say
from prorl_service.cli.screen import Screen
from prorl_service.cli.try_options import ModelOptions
from prorl_service.client.harness import with_harness
from prorl_service.errors import ProRLError
from prorl_service.inference.pool import PoolConfig
from prorl_service.schemas import Limits, Rollout, Sampling, Task
from prorl_service.schemas.numbers import mean_of, pass_at_k
from prorl_service.server.settings import SandboxOptions, ServiceSettings, panel
from prorl_service.utils.visible import visible_line

harbor = App(name="harbor", help="Check, run and prepare tasks in Harbor's format.")

Parallel = Annotated[PositiveInt, Parameter(name=("--parallel", "-j"), help="Rollouts at a time.")]
Reading = Annotated[ReadOptions, Parameter(name="*")]
Sandboxes = Annotated[SandboxOptions, panel("Sandboxes")]


@harbor.command
def check(
    *directories: Path,
    parallel: Parallel = 2,
    output: Annotated[Path | None, Parameter(name="--json", help="File for the results.")] = None,
    tasks: Annotated[
        Path | None,
        Parameter(name=("--output", "-o"), help="File for sound tasks, a task a line."),
    ] = None,
    reading: Reading = ReadOptions(),
    sandboxes: Sandboxes = SandboxOptions(),
) -> int:
    """Check that tasks are sound: the solution gets 1, doing nothing does not, cheats gain nothing.

    Exits with code 0 if all tasks are, else with 1.
    """
    found, refused = _read(directories, reading, with_probes=True)
    settings = ServiceSettings(sandboxes=replace(sandboxes, warm_sandboxes=0))
    checked = check_all(found, settings, parallel=parallel, say=say)
    chosen, results = asyncio.run(checked)
    problems = _shown(chosen, results)
    if output is not None:
        output.write_text(json.dumps(_as_json(chosen, results, problems), indent=1) + "\n")
    if tasks is not None:
        _write_sound(tasks, chosen, results, problems)
    return 1 if refused or any(problems.values()) else 0


@harbor.command
def run(
    *directories: Path,
    attempts: Annotated[PositiveInt, Parameter(name=("--attempts", "-n"))] = 1,
    parallel: Parallel = 4,
    harness: Annotated[
        str | None, Parameter(help="Harness to run instead of the built-in loop.")
    ] = None,
    output: Annotated[Path | None, Parameter(name="--json", help="File for rollouts.")] = None,
    reading: Reading = ReadOptions(),
    model: Annotated[ModelOptions, panel("Model")] = ModelOptions(),
    sampling: Annotated[Sampling, panel("Sampling")] = Sampling(),
    limits: Annotated[Limits, panel("Limits")] = Limits(eval_timeout_s=3600, max_turns=64),
    sandboxes: Sandboxes = SandboxOptions(),
) -> int:
    """Evaluate a model on tasks (pass@1 and pass@k).

    Exits with code 1 if a directory was refused.
    """
    found, refused = _read(directories, reading)
    tasks = [one.task for one in found]
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
        say=say,
    )
    ended = asyncio.run(work)
    if output is not None:
        output.write_text("".join(f"{one.model_dump_json()}\n" for one in ended))
    _show_scores(tasks, ended, attempts)
    return 1 if refused else 0


@harbor.command
def tasks(
    *directories: Path,
    output: Annotated[Path, Parameter(name=("--output", "-o"), help="File, a task a line.")],
    reading: Reading = ReadOptions(),
) -> int:
    """Write tasks as trainers send them, for a data set; their files go into the cache.

    This machine and the service share the cache: set the same $PRORL_CACHE. Exits with code 1 if a
    directory was refused.
    """
    found, refused = _read(directories, reading)
    _write([one.task for one in found], output)
    say(f"{len(found)} tasks in {output}")
    return 1 if refused else 0


@harbor.command
def prepare(
    *directories: Path,
    output: Annotated[Path, Parameter(name=("--output", "-o"), help="File, a task a line.")],
    parallel: Parallel = 2,
    reading: Reading = ReadOptions(),
    sandboxes: Sandboxes = SandboxOptions(),
) -> int:
    """Keep in the images what verifiers fetch from the network, so that training needs none.

    Runs each solution and its verifier with the network that the task asks for, then checks the
    tasks without one, as `check` does. Writes those that are sound, as `tasks` does.
    """
    found, refused = _read(directories, reading, with_probes=True)
    options = replace(sandboxes, warm_sandboxes=0)
    with_network = ServiceSettings(sandboxes=replace(options, task_network=True))
    fetching = study(found, with_network, parallel=parallel, say=say, agent=PreparingAgent)
    candidates, _ = asyncio.run(fetching)
    done = [_prepared(one) for one in candidates]
    offline = ServiceSettings(sandboxes=options)
    chosen, results = asyncio.run(check_all(done, offline, parallel=parallel, say=say))
    problems = _shown(chosen, results)
    _write_sound(output, chosen, results, problems)
    return 1 if refused or any(problems.values()) else 0


def _prepared(one: HarborCandidate) -> HarborCandidate:
    fetched = PreparingAgent.fetched.get(one.task.task_id, [])
    for step in fetched:
        hosts = ", ".join(f"{host} ({count})" for host, count in step.hosts.items())
        size = f"{len(step.files)} files, {len(step.tar) / 1e6:.1f} MB"
        say(f"{one.directory.name}: kept {size}; hosts: {hosts or 'none'}")
    return HarborCandidate(one.directory, prepared(one.task, fetched))


def _read(
    directories: Sequence[Path], options: ReadOptions, *, with_probes: bool = False
) -> tuple[list[HarborCandidate], dict[Path, str]]:
    """Shows the directories that are refused. Raises `ProRLError` if nothing is left."""
    found, refused = read_all(
        directories,
        options.env,
        strict=options.strict,
        builds=options.build,
        with_probes=with_probes,
    )
    if refused:
        table = Table("refused", "reason", box=None)
        for directory, reason in refused.items():
            cells = (visible_line(cell, limit=1000) for cell in (str(directory), reason))
            table.add_row(*cells)
        Screen(sys.stdout).table(table)
    if not found:
        raise ProRLError(f"none of {len(refused)} task directories can be read")
    return found, refused


def _write_sound(
    output: Path,
    candidates: Sequence[HarborCandidate],
    results: Results,
    problems: Mapping[str, Sequence[str]],
) -> None:
    """Writes the tasks without problems, with what was found out about their verifiers."""
    sound = [
        with_absent(one.task, absent_steps(results[one.directory.name]))
        for one in candidates
        if not problems[one.directory.name]
    ]
    _write(sound, output)
    say(f"{len(sound)} of {len(candidates)} tasks in {output}")


def _write(tasks: Sequence[Task], output: Path) -> None:
    output.write_text("".join(f"{one.model_dump_json(exclude_defaults=True)}\n" for one in tasks))


# --- tables ---------------------------------------------------------------------------------------


def _shown(candidates: Sequence[HarborCandidate], results: Results) -> dict[str, list[str]]:
    """Shows what probes got. Returns the problems of each task."""
    names = list(dict.fromkeys(one.probe for some in results.values() for one in some))
    table = Table("task", *names, "verdict", box=None)
    problems = {name: faults(outcomes) for name, outcomes in results.items()}
    for one in candidates:
        name = one.directory.name
        rewards = {outcome.probe: outcome.reward for outcome in results[name]}
        cells = [_cell(rewards.get(probe)) if probe in rewards else "" for probe in names]
        verdict = [*(problems[name] or ["sound"]), *_needs(one, results[name])]
        table.add_row(name, *cells, "; ".join(verdict))
    Screen(sys.stdout).table(table)
    return problems


def _needs(one: HarborCandidate, outcomes: Sequence[Outcome]) -> list[str]:
    """Returns what was found out that task.toml may say, in its words."""
    data, toml = HarborData.model_validate(one.task.data), one.directory.toml.verifier
    said = []
    if absent_steps(outcomes):
        said.append("the verifier gives no reward when it fails: reward_if_absent = 0")
    if data.work != toml.work:
        said.append(f"the solution writes elsewhere: work = {json.dumps(data.work)}")
    if data.isolated != toml.isolated:
        said.append("tests import from the current directory: isolated = false")
    return said


def _cell(reward: float | None) -> str:
    return "error" if reward is None else f"{reward:g}"


def _as_json(
    candidates: Sequence[HarborCandidate], results: Results, problems: Mapping[str, Sequence[str]]
) -> list[dict[str, object]]:
    data = {one.directory.name: HarborData.model_validate(one.task.data) for one in candidates}
    return [
        {
            "task": task,
            "problems": problems[task],
            "reward_if_absent": 0 if absent_steps(outcomes) else None,
            "work": data[task].work,
            "isolated": data[task].isolated,
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
    screen = Screen(sys.stdout)
    screen.table(table)
    for k in dict.fromkeys((1, attempts)):
        share = fmean(pass_at_k(attempts, count, k) for count in solved.values())
        screen.line(f"pass@{k}: {share:.3f} of {len(solved)} tasks, {attempts} attempts each")
