"""Checks that a sound task passes: its solution gets 1, nothing does not, and no cheat gains.

The cheats need no knowledge of a task. They aim at the verifier: its reward, its tests, its
programs, its files of settings. Pure.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prorl_service.agents.harbor.data import HarborData
from prorl_service.agents.harbor.directory.reading import TaskDirectory
from prorl_service.agents.harbor.probes import Act, Probe, ProbeAgent
from prorl_service.schemas import Task

ORACLE, NOTHING = "oracle", "nothing"
_TRACES = re.compile(r"/(__pycache__|\.cache|\.bash_history)/|^/(var/cache|logs|solution)/")

_NAMES = ("reward file", "tests", "daemon", "PATH", "shell", "links", "start-up files")
_SCRIPTS = Path(__file__).with_name("cheats")
CHEATS: Mapping[str, str] = {
    name: (_SCRIPTS / f"{name.replace(' ', '_')}.sh").read_text() for name in _NAMES
}
"""Scripts of the cheats, by their names."""


def oracle(directory: TaskDirectory) -> list[Probe]:
    """Returns the probe of the task's own solution, if it has one."""
    steps = max(1, len(directory.toml.steps))
    found = [directory.solution(index) for index in range(steps)]
    acts = [Act() if one is None else Act(solution=one[0], environment=one[1]) for one in found]
    return [Probe(name=ORACLE, acts=acts)] if any(found) else []


def others(_: TaskDirectory) -> list[Probe]:
    """Returns the probes that must not gain: doing nothing, and the cheats."""
    return [scripted(NOTHING, ""), *(scripted(name, script) for name, script in CHEATS.items())]


def scripted(name: str, script: str) -> Probe:
    return Probe(name=name, acts=[Act(script=script)])


def probed(task: Task, probe: Probe, agent: str = ProbeAgent.name) -> Task:
    """Returns the task of the probe's agent. Verifiers without a reward are told from broken ones
    by their exit code."""
    every_step = range(len(HarborData.model_validate(task.data).steps))
    data = {
        **with_absent(task, every_step).data,
        "probe": probe.model_dump(mode="json", exclude_defaults=True),
    }
    return task.model_copy(update={"agent": agent, "data": data})


def with_absent(task: Task, steps: Collection[int]) -> Task:
    """Returns the task with a reward of 0 where verifiers of these steps fail without one."""
    data = HarborData.model_validate(task.data)
    for index in steps:
        verifier = data.steps[index].verifier
        verifier.reward_if_absent = verifier.reward_if_absent or 0.0
    changed = data.model_dump(mode="json", exclude_defaults=True)
    return task.model_copy(update={"data": changed})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a probe got."""

    probe: str
    reward: float | None
    problem: str = ""
    """Reason why there is no reward."""
    refused: Sequence[str] = ()
    """What was left out, as `HarborData.work` names it."""
    absent: Collection[int] = ()
    """Steps whose verifier failed without a reward."""


VARIANTS = 2


def variants(task: Task, solved: Outcome) -> Iterator[Task]:
    """Yields what may make a solution pass that does not: its files declared as work, then modules
    of the current directory, too. `solved`: what it got without."""
    data = HarborData.model_validate(task.data)
    data.work = sorted({*data.work, *(one for one in solved.refused if not _is_trace(one))})
    for isolated in (data.isolated, False):
        data.isolated = isolated
        changed = data.model_dump(mode="json", exclude_defaults=True)
        yield task.model_copy(update={"data": changed})


def passes(solved: Outcome) -> bool:
    return solved.reward is not None and solved.reward >= 1 and not solved.absent


def _is_trace(path: str) -> bool:
    """Returns whether a solution left it without being asked for it."""
    return _TRACES.search(f"/{path}/") is not None


def absent_steps(outcomes: Sequence[Outcome]) -> list[int]:
    """Returns the steps whose verifier gives the solution a reward, and none to no work at all."""
    by_probe = {one.probe: one for one in outcomes}
    solved, nothing = by_probe.get(ORACLE), by_probe.get(NOTHING)
    if solved is None or nothing is None or solved.reward is None:
        return []
    return sorted({*nothing.absent} - {*solved.absent})


def faults(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns what is wrong with a task, in words; nothing for a sound one."""
    by_probe = {one.probe: one for one in outcomes}
    nothing = by_probe.get(NOTHING)
    base = None if nothing is None else nothing.reward
    problems = dict.fromkeys(one.problem for one in outcomes if one.reward is None)
    found = [
        f"{', '.join(one.probe for one in outcomes if one.problem == said)}: {said}"
        for said in problems
    ]
    found += [said for one in outcomes if (said := _fault(one, base))]
    if ORACLE not in by_probe:
        found.append("it has no solution/solve.sh to check with")
    return found


def _fault(outcome: Outcome, base: float | None) -> str:
    """`base` is the reward of doing nothing."""
    probe, reward = outcome.probe, outcome.reward
    if reward is None:
        return ""
    if probe == ORACLE:
        if outcome.absent:
            return "the verifier gives the solution no reward"
        return f"the solution gets {reward:g}, not 1" if reward < 1 else ""
    if probe == NOTHING:
        return f"doing nothing gets {reward:g}" if reward >= 1 else ""
    return f"the cheat {probe!r} gets {reward:g}" if base is not None and reward > base else ""
