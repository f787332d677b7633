"""`model=tiny`: a policy that knows how to call a tool but not what for, made on a CPU.

It imitates attempts at the offline problems of the training split. Most are wrong: which one earns
a reward is left to reinforcement learning.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from prorl_service.agents.registry import AgentRegistry
from recipes.common.training.imitation import Imitation, Transcript, tool_call, warm_started
from recipes.math_code.offline import code, math, stem
from recipes.math_code.offline.examples import Attempt, Example

COUNT = 2000
RIGHT_SHARE = 0.15
USUAL_SHARE = 0.55
"""Share of the usual mistake."""
SEED = 0


def warm_started_for(task: str, options: Mapping[str, Any], config: Imitation, cache: Path) -> Path:
    """Returns the model's directory, below `cache`; trains the model if it is not there yet."""
    transcripts = [
        _transcript(example, attempt, options)
        for example, attempt in _demonstrations(_examples(task, options))
    ]
    return warm_started(cache / f"{task}-tiny", transcripts, config)


def _examples(task: str, options: Mapping[str, Any]) -> list[Example]:
    match task:
        case "math":
            return math.examples("train", tool=options["tools"][0])
        case "code":
            return code.examples("train")
        case "stem":
            return stem.examples()
    raise ValueError(f"no task {task!r}")


def _demonstrations(examples: list[Example]) -> list[tuple[Example, Attempt]]:
    rng = Random(SEED)
    return [(example, _attempt(example, rng)) for example in rng.choices(examples, k=COUNT)]


def _attempt(example: Example, rng: Random) -> Attempt:
    usual, *others = example.wrong
    share = (1 - RIGHT_SHARE - USUAL_SHARE) / len(others)
    weights = [RIGHT_SHARE, USUAL_SHARE, *[share] * len(others)]
    return rng.choices([example.right, usual, *others], weights)[0]


@cache
def _agents() -> AgentRegistry:
    return AgentRegistry()


def _transcript(example: Example, attempt: Attempt, options: Mapping[str, Any]) -> Transcript:
    task = example.problem.task(options)
    return Transcript(
        prompt=_agents()[task.agent](task).prompt(),
        replies=(tool_call(attempt.tool, attempt.arguments), attempt.reply),
        answers=(attempt.output,),
    )
