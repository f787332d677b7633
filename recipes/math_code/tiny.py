"""Small policies that know how to call a tool but not what for, made on a CPU: `model=tiny`, and
`model=smollm2`, which has a base.

A policy imitates attempts at the offline problems of the training split. Most are wrong: which one
earns a reward is left to reinforcement learning.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from prorl_service.agents.registry import AgentRegistry
from prorl_service.inference.reference_engine.imitation import Imitation
from prorl_service.rewards.reasoning import Puzzle, make
from recipes.common.data.fields import Row
from recipes.common.training.imitation import Transcript, tool_call, warm_started
from recipes.math_code.data.puzzles import Puzzles, by_level, from_row, own_answer, source
from recipes.math_code.offline import code, files, math, stem
from recipes.math_code.offline.examples import Attempt, Example
from recipes.math_code.rows import ReasoningProblem

COUNT = 2000
SHARES = (0.15, 0.55)
"""Shares of the right attempt and of the usual mistake."""
SHARES_OF_PRETRAINED = (0.4,)
"""Share of the right attempt for a model that is trained on few rollouts."""
SEED = 0
RIGHT_SHARE_OF_LEVELS = (0.7, 0.4, 0.2, 0.05)
SUMS_OF_A_LEVEL = 60


def warm_started_for(
    task: str, options: Mapping[str, Any], config: Imitation, cache: Path, base: Path | int
) -> Path:
    """Returns the model's directory, below `cache`; trains the model if it is not there yet.
    `base`: see `imitation.warm_started`; a pretrained model also imitates questions over files."""
    if task == "reasoning_gym":
        transcripts = [_answered(*one, options) for one in _sums()]
    else:
        transcripts = [
            _transcript(example, attempt, options)
            for example, attempt in _demonstrations(task, options, base)
        ]
    return warm_started(cache / f"{task}-tiny", transcripts, config, base)


def _examples(task: str, options: Mapping[str, Any], base: Path | int) -> list[Example]:
    match task:
        case "math":
            words = math.examples("train", tool=options["tools"][0])
            return words if isinstance(base, int) else [*words, *files.examples("train")]
        case "code":
            return code.examples("train")
        case "stem":
            return stem.examples()
    raise ValueError(f"no task {task!r}")


def _demonstrations(
    task: str, options: Mapping[str, Any], base: Path | int
) -> list[tuple[Example, Attempt]]:
    rng = Random(SEED)
    chosen = rng.choices(_examples(task, options, base), k=COUNT)
    shares = SHARES if isinstance(base, int) else SHARES_OF_PRETRAINED
    return [(example, _attempt(example, rng, shares)) for example in chosen]


def _attempt(example: Example, rng: Random, shares: Sequence[float]) -> Attempt:
    """`shares` of the first attempts; the others have equal parts of the rest."""
    attempts = [example.right, *example.wrong]
    others = len(attempts) - len(shares)
    return rng.choices(attempts, [*shares, *[(1 - sum(shares)) / others] * others])[0]


def _sums() -> list[tuple[ReasoningProblem, str]]:
    """Returns sums of reasoning-gym with answers, which are seldom right on high levels."""
    rng = Random(SEED)
    levels = tuple(range(len(RIGHT_SHARE_OF_LEVELS)))
    options = Puzzles(("chain_sum",), levels, count=SUMS_OF_A_LEVEL, seed=SEED)
    sums = [from_row(Row(one, "a sum")) for one in source(options, "train").rows]
    made = []
    for level, problems in by_level(sums).items():
        share = RIGHT_SHARE_OF_LEVELS[level]
        answers = [own_answer(make(_puzzle(one))[1]) or "" for one in problems]
        for problem, right in rng.choices([*zip(problems, answers, strict=True)], k=COUNT // 4):
            is_right = rng.random() < share
            made.append((problem, right if is_right else rng.choice(answers)))
    return made


def _puzzle(problem: ReasoningProblem) -> Puzzle:
    return Puzzle.model_validate(problem.model_dump(include=set(Puzzle.model_fields)))


def _answered(problem: ReasoningProblem, answer: str, options: Mapping[str, Any]) -> Transcript:
    task = problem.task(options)
    prompt = _agents()[task.agent](task).prompt()
    return Transcript(prompt, (rf"\boxed{{{answer}}}",), ())


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
