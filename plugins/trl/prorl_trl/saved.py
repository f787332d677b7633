"""Rollouts of a training run saved to a directory, and training replayed from one.

Main process only. Knows the trainer's step and its prompts as groups, but no service or weights.
"""

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from prorl_service.client.saved import (
    SavedStep,
    StepFiles,
    UnusableFile,
    read_rollouts,
    saved_steps,
)
from prorl_service.schemas import Group, Rollout

logger = logging.getLogger(__name__)


def step_of(trainer: Any) -> SavedStep:
    """Returns the step that `trainer` makes rollouts for, as TRL's log will count it."""
    if trainer.model.training:
        return SavedStep(trainer.state.global_step + 1)
    return SavedStep(trainer.state.global_step, is_evaluation=True)


class SavedRun:
    """Rollouts that a run saves to one directory, or replays from another, in the order in which
    the run asks for them. Training continues without the disk: failures to write are logged."""

    def __init__(self, save: str | Path | None, replay: str | Path | None) -> None:
        self._save_to = None if save is None else Path(save)
        self._directory = Path() if replay is None else Path(replay)
        self.is_saved, self.is_replayed = save is not None, replay is not None
        if self.is_saved and self.is_replayed and self._save_to == self._directory:
            raise ValueError(f"save={str(save)!r} would replace what replay reads: name another")
        self._files: StepFiles | None = None
        self._steps: list[SavedStep] = []
        self._step: SavedStep | None = None
        self._left: list[Rollout] = []

    def open(self, step: SavedStep) -> None:
        """`step` is the first. Raises `UnusableFile` for directories that cannot be used."""
        if self._save_to is not None:
            self._begin(self._save_to, step)
        if not self.is_replayed:
            return
        try:
            self._steps = saved_steps(self._directory)
        except OSError as error:
            raise UnusableFile(f"replay={str(self._directory)!r}: {error.strerror}") from error
        if not self._steps:
            raise UnusableFile(
                f"replay={str(self._directory)!r} has no file such as {SavedStep(1).file_name}",
                hint="name the directory that a training run had as `save`",
            )
        tqdm.write(f"prorl: rollouts are replayed from {self._directory}", sys.stderr)

    def _begin(self, directory: Path, step: SavedStep) -> None:
        try:
            self._files = StepFiles(directory)
            later = [one for one in saved_steps(directory) if one >= step]
        except OSError as error:
            raise UnusableFile(
                f"save={str(directory)!r}: {error.strerror}", hint="name a directory to write to"
            ) from error
        if later:
            logger.warning(
                "%s has rollouts up to %s: each file is replaced when training gets there",
                directory,
                later[-1],
            )

    def add_tasks(self, groups: Iterable[Group]) -> None:
        self._write("tasks", lambda files: files.add_tasks(group.task for group in groups))

    def add(self, step: SavedStep, rollouts: Sequence[Rollout]) -> None:
        """Saves a step's rollouts immediately; an evaluation's come in several calls and are saved
        after the last."""

        def write(files: StepFiles) -> None:
            files.add(step, rollouts)
            if not step.is_evaluation:
                files.finish_all()

        if rollouts:
            self._write(f"rollouts of {step}", write)

    def end_evaluation(self) -> None:
        self._write("rollouts of an evaluation", lambda files: files.finish_all())

    def _write(self, what: str, write: Callable[[StepFiles], None]) -> None:
        if self._files is None:
            return
        try:
            write(self._files)
        except OSError as error:
            logger.warning("%s are not saved: %s", what, error)

    def next(self, step: SavedStep, groups: Sequence[Group], *, same_tasks: bool) -> list[Rollout]:
        """Returns the rollouts of `groups`. With `same_tasks` they are of these very tasks; without
        it, after dynamic sampling, they may be of other tasks, and fewer.

        Raises `UnusableFile` if the run asks for other rollouts than the saved one did.
        """
        if step != self._step:
            self._open(step)
        count = sum(group.n for group in groups)
        taken, self._left = self._left[:count], self._left[count:]
        if same_tasks:
            _check_tasks(taken, groups, self._directory / step.file_name)
        elif not taken:
            raise _mismatch(self._directory, f"{step} was saved with fewer rollouts")
        return taken

    def _open(self, step: SavedStep) -> None:
        if self._left:
            raise _mismatch(
                self._directory, f"{self._step} was saved with {len(self._left)} rollouts more"
            )
        if step not in self._steps:
            ends = dict.fromkeys((str(self._steps[0]), str(self._steps[-1])))
            raise _mismatch(self._directory, f"there is no {step}: there is {' to '.join(ends)}")
        self._left = list(read_rollouts(self._directory / step.file_name))
        self._step = step


def _check_tasks(rollouts: Sequence[Rollout], groups: Sequence[Group], file: Path) -> None:
    """Raises `UnusableFile`."""
    asked = [(group.task, index) for group in groups for index in range(group.n)]
    for number, (rollout, (task, index)) in enumerate(zip(rollouts, asked, strict=False), 1):
        saved = rollout.task_id, rollout.agent, rollout.index
        if saved != (task.task_id, task.agent, index):
            raise _mismatch(
                file,
                f"rollout {number} is number {rollout.index} of task {rollout.task_id!r}, this "
                f"training asks for number {index} of {task.task_id!r}",
            )
    if len(rollouts) < len(asked):
        raise _mismatch(file, f"{len(rollouts)} rollouts are left, training asks for {len(asked)}")


def _mismatch(place: Path, problem: str) -> UnusableFile:
    return UnusableFile(
        f"{place}: {problem}",
        hint="replay with the data set, seed, batch size and num_generations that it was saved "
        "with, and the same options of ProRLRollout",
    )
