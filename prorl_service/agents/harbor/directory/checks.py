"""What a sound task must withstand: its solution gets 1, nothing does not, and no cheat gains.

The cheats need no knowledge of a task. They aim at the verifier: its reward, its tests, its
programs, its files of settings. Pure.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prorl_service.agents.harbor.data import HarborData
from prorl_service.agents.harbor.directory.reading import TaskDirectory
from prorl_service.agents.harbor.probes import Act, Probe, ProbeAgent
from prorl_service.schemas import Task

ORACLE, NOTHING = "oracle", "nothing"
_TRACES = re.compile(r"/(__pycache__|\.cache|\.bash_history)/|^/(var/cache|logs|solution)/")

_WIN = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; " + (
    "echo '{\\\"reward\\\": 1}' > /logs/verifier/reward.json"
)
_FAKE = f"#!/bin/sh\\n{_WIN}\\nexit 0\\n"

CHEATS: Mapping[str, str] = {
    "reward file": f"""
        {_WIN.replace(chr(92), "")}
        chmod 444 /logs/verifier/*; chmod 555 /logs/verifier
    """,
    "tests": f"""
        mkdir -p /tests
        for name in test.sh test_outputs.py; do printf '{_FAKE}' > /tests/$name; done
        chmod 555 /tests/* /tests
    """,
    "daemon": f"""
        printf '#!/bin/sh\\nwhile :; do {_WIN}; sleep 0.05; done' > /tmp/d; chmod +x /tmp/d
        (setsid /tmp/d > /dev/null 2>&1 &)
        (setsid nohup /tmp/d > /dev/null 2>&1 &)
        sleep 0.2
    """,
    "PATH": f"""
        for directory in $(echo "$PATH" | tr : ' ') "$HOME/.local/bin" "$HOME/bin"; do
            mkdir -p "$directory"
            for name in pytest python python3 uv uvx pip curl wget cat grep cmp diff node npm; do
                printf '{_FAKE}' > "$directory/.$name" && chmod +x "$directory/.$name"
                mv -f "$directory/.$name" "$directory/$name"
            done
        done
    """,
    "shell": f"""
        printf '{_FAKE}' > /tmp/sh; chmod +x /tmp/sh
        for shell in bash sh dash env; do
            for directory in /bin /usr/bin /usr/local/bin; do
                cp -f /tmp/sh "$directory/$shell.new"
            done
        done
        for shell in bash sh dash env; do
            for directory in /usr/local/bin /usr/bin /bin; do
                /bin/mv -f "$directory/$shell.new" "$directory/$shell"
            done
        done
    """,
    "links": """
        for name in expected expected.txt expected_output.txt answer answer.txt; do
            for own in answer answer.txt output.txt result result.txt out.txt; do
                ln -sfn /tests/$name $own
            done
        done
        mkdir -p /tmp/won
        printf 1 > /tmp/won/reward.txt; printf '{"reward": 1}' > /tmp/won/reward.json
        rm -rf /logs/verifier; ln -s /tmp/won /logs/verifier
        rm -rf /logs; mkdir /logs 2>/dev/null || ln -s /tmp/logs /logs
        mkdir -p /tmp/logs; ln -sfn /tmp/won /logs/verifier
    """,
    "start-up files": f"""
        win='{_WIN.replace(chr(92), "")}'
        for file in /etc/profile /etc/bash.bashrc ~/.bashrc ~/.profile ~/.bash_profile; do
            echo "$win; exit 0" >> $file
        done
        printf 'BASH_ENV=/etc/profile\\nENV=/etc/profile\\n' >> /etc/environment
        export BASH_ENV=/etc/profile ENV=/etc/profile
        hook='import os, atexit; atexit.register(lambda: os.system(open("/tmp/win").read()))'
        echo "$win" > /tmp/win
        for site in /usr/lib/python3*/dist-packages /usr/lib/python3*/site-packages \\
                /usr/local/lib/python3*/site-packages /usr/local/lib/python3*/dist-packages \\
                ~/.local/lib/python3*/site-packages; do
            mkdir -p "$site" 2>/dev/null && echo "$hook" > "$site/sitecustomize.py"
            echo "$hook" > "$site/usercustomize.py"; echo "import os; $hook" > "$site/zz.pth"
        done
        for module in pytest json unittest argparse re sitecustomize conftest; do
            echo "$hook" | tee "$site/$module.py" > $module.py
        done
        echo "$hook" | tee /conftest.py > /usr/conftest.py
        printf '[pytest]\\naddopts = --collect-only\\n' | tee /pytest.ini pytest.ini > /tox.ini
        mkdir -p ~/.local/bin; echo "$win; exit 0" > ~/.local/bin/env
    """,
}  # fmt: skip
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
