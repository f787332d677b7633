"""Saved rollouts, and training on them again: without a service, to the same weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from prorl_service import local
from prorl_service.client.saved import UnusableFile, read_rollouts, read_tasks
from prorl_trl import ProRLRollout
from tests.trl.training import Trainings, logged

pytestmark = pytest.mark.processes

NOBODY = f"http://127.0.0.1:{local.free_port()}"
LEARNT = ("loss", "grad_norm", "reward", "reward_std", "sampling/sampling_logp_difference/max")
EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 2}


def assert_same(one: GRPOTrainer, other: GRPOTrainer) -> None:
    for name in (*LEARNT, "eval_reward", "prorl/turns", "prorl/rollout_s"):
        assert logged(one, name) == logged(other, name) != [], name
    weights: Mapping[str, torch.Tensor] = other.model.state_dict()
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def test_a_training_is_repeated_from_its_rollouts_to_the_same_weights(
    train: Trainings, service_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "rollouts"
    first = train(save=saved, options=EVALUATED)
    assert f"watch the rollouts at {service_url}" in capsys.readouterr().err
    names = ["step-000001", "eval-000001", "step-000002", "eval-000002"]
    files = {"tasks.jsonl", *(f"{name}.jsonl" for name in names)}
    assert {path.name for path in saved.iterdir()} == files
    kept = [one for name in names for one in read_rollouts(saved / f"{name}.jsonl")]
    assert kept == train.observed
    lines = (saved / "step-000001.jsonl").read_text().splitlines()
    assert len(lines) == 8
    assert all('"b64"' in line for line in lines)
    assert read_tasks(saved).keys() == {rollout.task_id for rollout in kept}

    second = train(url=NOBODY, replay=saved, options=EVALUATED)
    assert f"replayed from {saved}" in capsys.readouterr().err
    assert_same(first, second)


def test_dynamic_sampling_is_replayed_with_the_groups_that_were_drawn(
    train: Trainings, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"dynamic_sampling": True, "faults": [None, "easy"] * 4}
    first = train(save=tmp_path / "saved", **options)
    second = train(url=NOBODY, replay=tmp_path / "saved", **options)
    for name in LEARNT:
        assert logged(first, name) == logged(second, name) != []


@pytest.fixture
def saved(train: Trainings, tmp_path: Path) -> Path:
    """Returns the directory of a run of one step."""
    train(save=tmp_path / "saved", options={"max_steps": 1})
    return tmp_path / "saved"


def test_another_run_than_the_one_that_was_saved_is_refused_in_one_line(
    train: Trainings, saved: Path
) -> None:
    def problem(**changes: Any) -> str:
        with pytest.raises(UnusableFile) as refused:
            train(url=NOBODY, replay=saved, **changes)
        assert "seed" in refused.value.hint
        return refused.value.message

    shuffled = problem(options={"shuffle_dataset": True, "seed": 7})
    assert "step-000001.jsonl: rollout 1 is number 0 of task 'count-0'" in shuffled
    assert "asks for number 0 of 'count-" in shuffled
    assert "rollout 5 is number 0 of task 'count-1'" in problem(options={"num_generations": 8})
    assert "8 rollouts are left, training asks for 16" in problem(
        options={"per_device_train_batch_size": 16}
    )
    assert "there is no step 2: there is step 1" in problem()


def test_a_file_that_was_changed_is_refused_with_its_line(train: Trainings, saved: Path) -> None:
    file = saved / "step-000001.jsonl"
    lines = file.read_text().splitlines()
    broken = json.loads(lines[2])
    broken["trajectory"]["segments"][0]["loss_mask"]["runs"][0][1] += 1
    file.write_text("\n".join([*lines[:2], json.dumps(broken), *lines[3:]]))
    with pytest.raises(UnusableFile, match=r"step-000001\.jsonl, line 3: not a rollout: .*long as"):
        train(url=NOBODY, replay=saved)


def test_a_restarted_training_replaces_its_steps_and_says_so(
    train: Trainings, saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = [one.rollout_id for one in read_rollouts(saved / "step-000001.jsonl")]
    tasks = (saved / "tasks.jsonl").read_text()
    assert not [one for one in caplog.get_records("setup") if "up to" in one.getMessage()]
    train(save=saved, options={"max_steps": 1})
    assert "has rollouts up to step 1" in caplog.text
    after = [one.rollout_id for one in read_rollouts(saved / "step-000001.jsonl")]
    assert len(before) == len(after) == 8
    assert not {*before} & {*after}
    assert (saved / "tasks.jsonl").read_text() == tasks


def test_failed_rollouts_are_saved_even_if_they_end_the_training(
    train_there: Trainings, tmp_path: Path
) -> None:
    faults = ["agent", *[None] * 7]
    with pytest.raises(Exception, match="this agent always fails"):
        train_there(save=tmp_path / "saved", on_failure="raise", faults=faults)
    states = [one.state.value for one in read_rollouts(tmp_path / "saved" / "step-000001.jsonl")]
    assert states == ["failed"] * 4 + ["done"] * 4


def test_directories_that_cannot_be_used_are_refused(
    train: Trainings, idle_url: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="would replace what replay reads"):
        ProRLRollout(NOBODY, save=tmp_path, replay=str(tmp_path))
    (tmp_path / "file").touch()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"replay": tmp_path / "none"}, "No such file"),
        ({"replay": tmp_path}, "no file such as step-000001.jsonl"),
        ({"save": tmp_path / "file" / "x"}, "Not a directory"),
    ]
    for options, problem in cases:
        with pytest.raises(UnusableFile, match=problem):
            train(url=idle_url, **options)
