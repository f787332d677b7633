"""Rollouts of a training run in a directory: trainers write them, and read them to train again.

`step-000012.jsonl` has the rollouts of the 12th step, `eval-000012.jsonl` those of the evaluation
after it: a line each, the wire type with packed arrays. `tasks.jsonl` has their tasks. A file of
rollouts is complete or absent, and replaces that of an earlier start. Trainers are not known here.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TextIO

from pydantic import ValidationError

from prorl_service.errors import ProRLError
from prorl_service.schemas import Rollout, Task
from prorl_service.schemas.arrays import PACKED
from prorl_service.utils.files import whole_file

TASKS = "tasks.jsonl"

_FILE = re.compile(r"(?P<kind>step|eval)-(?P<number>\d{6,})\.jsonl")


class UnusableFile(ProRLError):
    """A file of rollouts is missing or malformed."""


@dataclass(frozen=True, slots=True, order=True)
class SavedStep:
    """Training step `number`, counted from 1 as trainers log it, or the evaluation after it."""

    number: int
    is_evaluation: bool = False

    @property
    def file_name(self) -> str:
        return f"{'eval' if self.is_evaluation else 'step'}-{self.number:06d}.jsonl"

    @classmethod
    def named(cls, file_name: str) -> Self | None:
        """Returns None for the name of another file."""
        if (found := _FILE.fullmatch(file_name)) is None:
            return None
        return cls(int(found["number"]), is_evaluation=found["kind"] == "eval")

    def __str__(self) -> str:
        return f"evaluation {self.number}" if self.is_evaluation else f"step {self.number}"


def saved_steps(directory: Path) -> list[SavedStep]:
    """Returns the steps whose rollouts are in `directory`, in order. Raises `OSError`."""
    found = (SavedStep.named(path.name) for path in directory.iterdir())
    return sorted(step for step in found if step is not None)


def read_rollouts(file: Path) -> Iterator[Rollout]:
    """Yields the rollouts of a file with one a line. Raises `UnusableFile`."""
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _parsed(line, f"{file}, line {number}")
    except OSError as error:
        raise UnusableFile(f"{file}: {error.strerror}") from error


def _parsed(line: bytes, place: str) -> Rollout:
    try:
        return Rollout.model_validate_json(line)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise UnusableFile(
            f"{place}: not a rollout: {where + ': ' if where else ''}{problem['msg']}",
            hint="a line must be a rollout as the service's API gives it",
        ) from error


def read_tasks(directory: Path) -> dict[str, Task]:
    """Returns tasks by id; a later line replaces an earlier one. Empty if there is no such file."""
    tasks = {}
    file = directory / TASKS
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        try:
            task = Task.model_validate_json(line)
        except ValidationError:  # its writer was killed
            continue
        tasks[task.task_id] = task
    return tasks


class StepFiles:
    """Writer of one training run's directory. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        """Raises `OSError` for a directory that cannot be made or written."""
        directory.mkdir(parents=True, exist_ok=True)
        for unfinished in directory.glob(".*.jsonl.*"):  # of a writer that was killed
            unfinished.unlink()
        self.directory = directory
        self._tasks_file = directory / TASKS
        with self._tasks_file.open("a+b") as file:
            file.seek(0)
            known = file.read()
            if known and not known.endswith(b"\n"):  # its writer was killed in the middle of a line
                file.write(b"\n")
        self._tasks = set(known.splitlines())
        self._open: dict[SavedStep, tuple[ExitStack, TextIO]] = {}
        self._finished: set[SavedStep] = set()

    def add_tasks(self, tasks: Iterable[Task]) -> None:
        """Adds tasks that are not there yet. Raises `OSError`."""
        lines = dict.fromkeys(task.model_dump_json().encode() for task in tasks)
        new = [line for line in lines if line not in self._tasks]
        if new:
            with self._tasks_file.open("ab") as file:
                file.write(b"".join(line + b"\n" for line in new))
            self._tasks.update(new)

    def add(self, step: SavedStep, rollouts: Iterable[Rollout]) -> None:
        """Writes to a file that is hidden until `finish`. Raises `OSError`."""
        if step not in self._open:
            self._begin(step)
        _, file = self._open[step]
        file.writelines(rollout.model_dump_json(context=PACKED) + "\n" for rollout in rollouts)

    def _begin(self, step: SavedStep) -> None:
        path = self.directory / step.file_name
        stack = ExitStack()
        file = stack.enter_context(whole_file(path))
        self._open[step] = stack, file
        if step in self._finished:  # more rollouts came than expected
            with path.open(encoding="utf-8") as before:
                shutil.copyfileobj(before, file)

    def finish(self, step: SavedStep) -> None:
        """Puts the file in its place, if anything was added. Raises `OSError`."""
        if step in self._open:
            stack, _ = self._open.pop(step)
            stack.close()
            self._finished.add(step)

    def finish_all(self) -> None:
        for step in list(self._open):
            self.finish(step)
