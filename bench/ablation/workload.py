"""The workload, the same for all rows: what each rollout samples, runs and waits for.

All of it is a pure function of the seed and the rollout's id, so engines and agents need no state
in common. Turns, successes and the tail are those of `bench.dapo`, with longer rollouts.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from bench.dapo import workload as dapo
from bench.dapo.workload import End
from prorl_service.schemas import Group, Limits, Message, Sampling, Task

AGENT = "ablation"
WORLD = dapo.World(never_solved=0.10, always_solved=0.05, median_turns=6)
TOKENS_MEDIAN, TOKENS_SIGMA, MAX_TOKENS = 45, 0.7, 512
"""Tokens of a turn, lognormal. A tool call takes some thirty of them at least."""
EVAL_MEDIAN_S, EVAL_SIGMA = 5.0, 0.5
"""Seconds of EVAL, lognormal: the wall of a test suite, slept."""
MAX_CALLS = 64
"""Most turns of a rollout for the service, above those of the workload. A rollout's seed is a
multiple of it, and each of its calls adds the number of the turn."""
COMMANDS = (
    "ls /usr/lib | head -20",
    "grep -rn bash /etc/profile /etc/bash.bashrc | head -5",
    "cat /etc/os-release | grep -c =",
    "ls -la /etc | wc -l",
)
PYTHON, PYTHON_SHARE = "python3 -c 'print(sum(range(1000)))'", 0.05
SYSTEM = "You are a careful engineer. Use the shell, look at the files, then say what you found. "
PROMPT_REPEATS = 24
"""Repeats of the system message: a prompt of about a thousand of the tiny tokenizer's tokens."""


@dataclass(frozen=True, slots=True)
class Size:
    """Extent of a run."""

    slots: int = 64
    eval_workers: int = 256
    groups_at_once: int = 32
    """Groups in flight: enough for all slots, with as many rollouts again in EVAL."""
    target: int = 16
    n: int = 8
    draws: int = 2
    """Draws of a run; the first fills the stages, and is not measured."""
    pace: float = 1.0
    """Factor of sampled tokens and EVAL's seconds."""


def end(seed: int, rollout_id: str) -> End:
    """Returns the turns and the reward of a rollout `...cNUMBER:ATTEMPT.INDEX`."""
    return dapo.end(seed, rollout_id, WORLD)


def tokens(seed: int, rollout_id: str, turn: int, pace: float) -> int:
    rng = _rng(seed, rollout_id, turn)
    return min(MAX_TOKENS, 1 + round(pace * _lognormal(rng, TOKENS_MEDIAN, TOKENS_SIGMA)))


def command(seed: int, rollout_id: str, turn: int) -> str:
    rng = _rng(seed, rollout_id, f"command {turn}")
    return PYTHON if rng.random() < PYTHON_SHARE else rng.choice(COMMANDS)


def eval_s(seed: int, rollout_id: str, pace: float) -> float:
    return pace * _lognormal(_rng(seed, rollout_id, "eval"), EVAL_MEDIAN_S, EVAL_SIGMA)


def _lognormal(rng: random.Random, median: float, sigma: float) -> float:
    return rng.lognormvariate(math.log(median), sigma)


def _rng(seed: int, rollout_id: str, what: object) -> random.Random:
    """Returns the numbers of a part of a rollout, whatever its sampler is called."""
    name = ":".join(rollout_id.split(":")[-2:])
    return random.Random(f"{seed} {name} {what}")


LEAST_MEAN, MOST_MEAN = 0.2, 0.8
"""Bounds of a group's mean reward. Between all and nothing, a verdict can be early."""


def candidates(seed: int, size: Size, bash_delay_s: float) -> Iterator[Group]:
    """Yields groups endlessly. `bash_delay_s`: see `agent`."""
    messages = [
        Message(role="system", content=SYSTEM * PROMPT_REPEATS),
        Message(role="user", content="What is on this machine?"),
    ]
    for group in dapo.candidates(seed, size.n):
        data: dict[str, JsonValue] = {
            "seed": seed,
            "pace": size.pace,
            "bash_delay_s": bash_delay_s,
        }
        task = Task(task_id=group.task.task_id, agent=AGENT, messages=messages, data=data)
        yield Group(
            group_id=group.group_id,
            task=task,
            n=size.n,
            sampling=Sampling(seed=0),
            limits=Limits(max_turns=MAX_CALLS),
        )
