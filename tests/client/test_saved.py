"""The directory of a training run's rollouts: whole files or none, and tasks beside them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.client.saved import (
    TASKS,
    SavedStep,
    StepFiles,
    UnusableFile,
    read_rollouts,
    read_tasks,
    saved_steps,
)
from prorl_service.schemas import Rollout, RolloutState, Task
from tests import builders

STEPS = st.builds(SavedStep, st.integers(0, 10**9), st.booleans())


def rollout(number: int) -> Rollout:
    return builders.rollout(f"g.{number}", state=RolloutState.FAILED)


def task(task_id: str, text: str = "Hi.") -> Task:
    return builders.task(task_id, messages=[{"role": "user", "content": text}])


def visible(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))


@given(STEPS)
def test_a_step_is_known_by_its_files_name(step: SavedStep) -> None:
    assert SavedStep.named(step.file_name) == step


def test_other_files_are_not_steps(tmp_path: Path) -> None:
    for name in (TASKS, "step-1.jsonl", "step-000001.json", "x-step-000001.jsonl", "notes"):
        (tmp_path / name).touch()
    assert saved_steps(tmp_path) == []


def test_an_evaluation_comes_after_its_step_and_before_the_next() -> None:
    evaluation = SavedStep(2, is_evaluation=True)
    assert sorted([SavedStep(10), evaluation, SavedStep(2)]) == [
        SavedStep(2),
        evaluation,
        SavedStep(10),
    ]


def test_a_file_is_there_when_its_step_is_finished_and_not_before(tmp_path: Path) -> None:
    files = StepFiles(tmp_path / "new" / "saved")
    step = SavedStep(12)
    files.add(step, [rollout(0)])
    files.add(step, [rollout(1)])
    assert visible(files.directory) == [TASKS]
    files.finish(step)
    assert visible(files.directory) == ["step-000012.jsonl", TASKS]
    assert [*read_rollouts(files.directory / step.file_name)] == [rollout(0), rollout(1)]
    files.finish(SavedStep(13))  # of which nothing came
    assert visible(files.directory) == ["step-000012.jsonl", TASKS]


def test_late_rollouts_join_a_finished_step_and_a_new_start_replaces_it(
    tmp_path: Path,
) -> None:
    step, evaluation = SavedStep(1), SavedStep(1, is_evaluation=True)
    for _ in range(2):
        files = StepFiles(tmp_path)
        files.add(step, [rollout(0)])
        files.finish(step)
        files.add(step, [rollout(1)])
        files.add(evaluation, [rollout(2)])
        assert [*read_rollouts(tmp_path / step.file_name)] == [rollout(0)]
        files.finish_all()
        assert [*read_rollouts(tmp_path / step.file_name)] == [rollout(0), rollout(1)]
        assert [*read_rollouts(tmp_path / evaluation.file_name)] == [rollout(2)]
    assert saved_steps(tmp_path) == [step, evaluation]


@pytest.mark.processes
def test_a_writer_that_is_killed_leaves_the_files_that_were_there(tmp_path: Path) -> None:
    files = StepFiles(tmp_path)
    files.add(SavedStep(1), [rollout(0)])
    files.finish(SavedStep(1))
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from prorl_service.client.saved import *\n"
        "files = StepFiles(Path(sys.argv[1]))\n"
        "files.add(SavedStep(1), read_rollouts(Path(sys.argv[1]) / 'step-000001.jsonl'))\n"
        "files.add(SavedStep(2), read_rollouts(Path(sys.argv[1]) / 'step-000001.jsonl'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=os.environ, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert visible(tmp_path) == ["step-000001.jsonl", TASKS]
    assert [*read_rollouts(tmp_path / "step-000001.jsonl")] == [rollout(0)]
    StepFiles(tmp_path)
    assert len([*tmp_path.iterdir()]) == 2  # what it had not finished is gone


def test_each_task_is_kept_once_over_starts_and_the_later_of_one_name_counts(
    tmp_path: Path,
) -> None:
    files = StepFiles(tmp_path)
    files.add_tasks([task("a"), task("a"), task("b")])
    files.add_tasks([task("b")])
    again = StepFiles(tmp_path)
    again.add_tasks([task("a"), task("b", "Changed.")])
    assert len((tmp_path / TASKS).read_text().splitlines()) == 3
    assert read_tasks(tmp_path) == {"a": task("a"), "b": task("b", "Changed.")}


def test_a_task_whose_writer_was_killed_hides_no_other(tmp_path: Path) -> None:
    StepFiles(tmp_path).add_tasks([task("a")])
    with (tmp_path / TASKS).open("a") as file:
        file.write('{"task_id": "b", "ag')
    assert read_tasks(tmp_path) == {"a": task("a")}
    StepFiles(tmp_path).add_tasks([task("c")])
    assert read_tasks(tmp_path) == {"a": task("a"), "c": task("c")}
    assert read_tasks(tmp_path / "none") == {}


def test_a_line_that_is_not_a_rollout_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(rollout(0).model_dump_json() + "\n\n{}\n")
    with pytest.raises(UnusableFile, match=r"x\.jsonl, line 3: not a rollout: rollout_id: Field"):
        list(read_rollouts(file))
    with pytest.raises(UnusableFile, match="No such file"):
        list(read_rollouts(tmp_path / "none"))
