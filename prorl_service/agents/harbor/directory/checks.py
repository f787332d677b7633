"""What a sound task must withstand: its solution gets 1, nothing does not, and no cheat gains.

The cheats need no knowledge of a task. They aim at the verifier: its reward, its tests, its
programs, its files of settings. Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from prorl_service.agents.harbor.data import HarborData
from prorl_service.agents.harbor.directory.reading import TaskDirectory
from prorl_service.agents.harbor.probes import Act, Probe, ProbeAgent
from prorl_service.schemas import Task

ORACLE, NOTHING = "oracle", "nothing"

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
        echo "$hook" | tee /conftest.py > /usr/conftest.py
        printf '[pytest]\\naddopts = --collect-only\\n' | tee /pytest.ini > /tox.ini
    """,
}  # fmt: skip
"""Scripts of the cheats, by their names."""


def probes(directory: TaskDirectory) -> list[Probe]:
    """Returns all probes of a task; the oracle only if it has a solution."""
    steps = max(1, len(directory.toml.steps))
    found = [directory.solution(index) for index in range(steps)]
    acts = [Act() if one is None else Act(solution=one[0], environment=one[1]) for one in found]
    oracle = [Probe(name=ORACLE, acts=acts)] if any(found) else []
    cheats = [Probe(name=name, acts=[Act(script=script)]) for name, script in CHEATS.items()]
    return [*oracle, Probe(name=NOTHING, acts=[Act()]), *cheats]


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
    absent: Collection[int] = ()
    """Steps whose verifier failed without a reward."""


def absent_steps(outcomes: Sequence[Outcome]) -> list[int]:
    """Returns the steps whose verifier gives the solution a reward, and none to no work at all."""
    by_probe = {one.probe: one for one in outcomes}
    oracle, nothing = by_probe.get(ORACLE), by_probe.get(NOTHING)
    if oracle is None or nothing is None or oracle.reward is None:
        return []
    return sorted({*nothing.absent} - {*oracle.absent})


def faults(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns what is wrong with a task, in words; nothing for a sound one."""
    by_probe = {one.probe: one for one in outcomes}
    nothing = by_probe.get(NOTHING)
    base = None if nothing is None else nothing.reward
    found = [f"{one.probe}: {one.problem}" for one in outcomes if one.reward is None]
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
