"""`prorl replay`: a training run's saved rollouts, step by step, and rewards by a new function.

A reward function sees only a rollout and its task. The sandboxes are gone, so the grading of agents
that take results out of a sandbox cannot be repeated.
"""

import math
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from prorl_service.agents.registry import imported
from prorl_service.cli.lists import table_of
from prorl_service.cli.screen import Screen
from prorl_service.client.saved import (
    SavedStep,
    StepFiles,
    UnusableFile,
    read_rollouts,
    read_tasks,
    saved_steps,
)
from prorl_service.client.trainable import failure_of
from prorl_service.errors import InvalidRequest, ProRLError
from prorl_service.schemas import Rollout, Task
from prorl_service.schemas.numbers import mean_of

Reward = Callable[[Rollout, Task | None], float | None]

SAVED_REWARD = "saved_reward"
"""Reward component that holds the rollout's saved reward."""


def replay(directory: Path, /, *, reward: str | None = None, out: Path | None = None) -> None:
    """Show the rollouts that a training run saved, or compute new rewards for them.

    Train on them again, without engines or a service: ProRLRollout(url, replay=DIRECTORY).

    Parameters
    ----------
    directory
        The directory that the run was given as `save`.
    reward
        Function of rollout and task: 'my_reward.py:function' or 'package.module:function'.
    out
        Directory for the rollouts with their new rewards.
    """
    if out is not None and reward is None:
        raise ProRLError("--out needs --reward: without it nothing changes")
    if out is not None and out.resolve() == directory.resolve():
        raise ProRLError("--out would replace the rollouts that are read", hint="name another")
    function = None if reward is None else _loaded(reward)
    steps = _steps(directory)
    tasks = read_tasks(directory)
    files = None if out is None else _files(out, tasks.values())
    new = ("*new reward", "*new informative") if function is not None else ()
    table = table_of("", "*rollouts", "*failed", "*reward", "*informative groups", *new)
    for step in steps:
        before = list(read_rollouts(directory / step.file_name))
        after = before if function is None else [_rewarded(one, tasks, function) for one in before]
        if files is not None:
            files.add(step, after)
            files.finish(step)
        cells = [*_counts(before), *_rewards(before), *(_rewards(after) if function else ())]
        table.add_row(str(step), *cells)
    Screen(sys.stdout).table(table)


def _steps(directory: Path) -> list[SavedStep]:
    """Raises `UnusableFile`."""
    try:
        steps = saved_steps(directory)
    except OSError as error:
        raise UnusableFile(
            f"{directory}: {error.strerror}",
            hint="name the directory that the run was given as `save`",
        ) from error
    if not steps:
        raise UnusableFile(
            f"{directory} has no file such as {SavedStep(1).file_name}",
            hint="name a directory that a trainer saved: ProRLRollout(save=...), prorl.save=...",
        )
    return steps


def _files(out: Path, tasks: Iterable[Task]) -> StepFiles:
    try:
        files = StepFiles(out)
        files.add_tasks(tasks)
    except OSError as error:
        raise ProRLError(f"--out {out}: {error.strerror}") from error
    return files


def _counts(rollouts: Sequence[Rollout]) -> list[str]:
    failed = sum(failure_of(one) is not None for one in rollouts)
    return [str(len(rollouts)), str(failed)]


def _rewards(rollouts: Sequence[Rollout]) -> list[str]:
    """Formats the mean reward and the number of groups whose rewards differ."""
    groups = [
        {one.reward for one in group if one.reward is not None}
        for _, group in groupby(sorted(rollouts, key=_group), key=_group)
    ]
    informative = sum(len(rewards) > 1 for rewards in groups)
    mean = mean_of(one.reward for one in rollouts if one.reward is not None)
    return ["-" if mean is None else f"{mean:.3f}", f"{informative} of {len(groups)}"]


def _group(rollout: Rollout) -> str:
    return rollout.group_id


def _rewarded(rollout: Rollout, tasks: Mapping[str, Task], function: Reward) -> Rollout:
    """Returns the rollout with its new reward; failed ones are unchanged. Raises `ProRLError`."""
    if failure_of(rollout) is not None:
        return rollout
    try:
        reward = function(rollout, tasks.get(rollout.task_id))
    except Exception as error:  # the user's function may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ProRLError(
            f"--reward, on rollout {rollout.rollout_id}: {type(error).__name__}: {error}",
            hint=f"{place.filename}, line {place.lineno}",
        ) from error
    if reward is not None and not (isinstance(reward, int | float) and math.isfinite(reward)):
        raise ProRLError(f"--reward, on rollout {rollout.rollout_id}: {reward!r} is not a number")
    components = {**rollout.reward_components, SAVED_REWARD: rollout.reward}
    return rollout.model_copy(
        update={
            "reward": None if reward is None else float(reward),
            "reward_components": components,
        }
    )


def _loaded(path: str) -> Reward:
    """Raises `ProRLError`."""
    source, _, name = path.partition(":")
    if not name:
        raise ProRLError(f"--reward {path!r} names no function", hint=f"write {source}:function")
    try:
        function = imported(path, role="--reward")
    except InvalidRequest as error:
        raise ProRLError(error.message) from error
    if not callable(function):
        raise ProRLError(f"--reward {path!r}: {name} is no function")
    return function  # type: ignore[no-any-return]
