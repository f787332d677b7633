"""`prorl replay`: what a training run saved, step by step, and what another reward makes of it.

A reward function sees a rollout and its task, and nothing of sandboxes, which are gone: EVAL of an
agent that grades what it took out of one cannot be repeated.
"""

import importlib
import importlib.util
import math
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from prorl_service.client.saved import (
    SavedStep,
    StepFiles,
    UnusableFile,
    read_rollouts,
    read_tasks,
    saved_steps,
)
from prorl_service.client.trainable import failure_of
from prorl_service.errors import ProRLError
from prorl_service.schemas import Rollout, Task

Reward = Callable[[Rollout, Task | None], float | None]

SAVED_REWARD = "saved_reward"
"""Component of a rewarded rollout: the reward that it had."""


def replay(directory: Path, /, *, reward: str | None = None, out: Path | None = None) -> None:
    """Look at the rollouts that a training run saved, or reward them anew.

    Train on them again, without engines or a service: ProRLRollout(url, replay=DIRECTORY).

    Parameters
    ----------
    directory
        The one that the run had as `save`.
    reward
        A function of rollout and task as 'my_reward.py:function' or 'package.module:function'.
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
    table = _table(has_new=function is not None)
    for step in steps:
        before = list(read_rollouts(directory / step.file_name))
        after = before if function is None else [_rewarded(one, tasks, function) for one in before]
        if files is not None:
            files.add(step, after)
            files.finish(step)
        cells = [*Figures(before).cells(), *(Figures(after).rewards() if function else ())]
        table.add_row(str(step), *cells)
    Console().print(table)


def _steps(directory: Path) -> list[SavedStep]:
    """Raises `UnusableFile`."""
    try:
        steps = saved_steps(directory)
    except OSError as error:
        raise UnusableFile(f"{directory}: {error.strerror}") from error
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


@dataclass(frozen=True, slots=True)
class Figures:
    """Those of one step's rollouts."""

    rollouts: Sequence[Rollout]

    def cells(self) -> list[str]:
        failed = sum(failure_of(one) is not None for one in self.rollouts)
        return [str(len(self.rollouts)), str(failed), *self.rewards()]

    def rewards(self) -> list[str]:
        """Mean, and groups whose rewards differ."""
        known = [one.reward for one in self.rollouts if one.reward is not None]
        groups = [
            {one.reward for one in group if one.reward is not None}
            for _, group in groupby(sorted(self.rollouts, key=_group), key=_group)
        ]
        informative = sum(len(rewards) > 1 for rewards in groups)
        return [f"{fmean(known):.3f}" if known else "-", f"{informative} of {len(groups)}"]


def _group(rollout: Rollout) -> str:
    return rollout.group_id


def _table(*, has_new: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    new = ("new reward", "new informative") if has_new else ()
    for name in ("rollouts", "failed", "reward", "informative groups", *new):
        table.add_column(name, justify="right")
    return table


def _rewarded(rollout: Rollout, tasks: Mapping[str, Task], function: Reward) -> Rollout:
    """Failed rollouts stay as they are: they are nothing to be rewarded. Raises `ProRLError`."""
    if failure_of(rollout) is not None:
        return rollout
    try:
        reward = function(rollout, tasks.get(rollout.task_id))
    except Exception as error:  # whatever somebody's function does
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise ProRLError(
            f"--reward, on rollout {rollout.rollout_id}: {type(error).__name__}: {error}",
            hint=f"{place.filename}, line {place.lineno}",
        ) from error
    if reward is not None and not (isinstance(reward, int | float) and math.isfinite(reward)):
        raise ProRLError(f"--reward, on rollout {rollout.rollout_id}: {reward!r} is no number")
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
    function = getattr(_module(source, path), name, None)
    if not callable(function):
        raise ProRLError(f"--reward {path!r}: {source} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def _module(source: str, path: str) -> Any:
    try:
        if not source.endswith(".py"):
            sys.path.append("")  # last: files here hide nothing that is installed
            return importlib.import_module(source)
        spec = importlib.util.spec_from_file_location(Path(source).stem, source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the module does when it is imported
        raise ProRLError(f"--reward {path!r}: {type(error).__name__}: {error}") from error
    return module
