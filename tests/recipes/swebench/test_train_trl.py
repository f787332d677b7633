"""`python -m recipes.swebench.train model=tiny trainer=trl`: the real trainer, on real bugs."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from transformers import TrainerState

from recipes.common.training.trl import newest_checkpoint
from recipes.common.versions import commit
from tests.recipes.commands import progress, running
from tests.recipes.swebench.instances import QUICK, rows_of_tiny

pytestmark = pytest.mark.timeout(1800)

TRAIN = "recipes.swebench.train"
EXACT = 1e-4
"""Largest logprob difference in nats between engine and trainer, on tokens of the newest policy."""


# Two updates for each step's rollouts.
UPDATES = ("algorithm.prompts_per_update=1", "algorithm.rollouts_per_device=4")


@pytest.mark.processes
def test_training_continues_after_a_kill(tmp_path: Path) -> None:
    output, rows = tmp_path / "output", rows_of_tiny(tmp_path)
    overrides = ["model=tiny", "trainer=trl", "steps=3", f"data.rows={rows}", f"output={output}"]
    overrides += [*QUICK, *UPDATES]
    checkpoints = output / "checkpoints"
    with running(TRAIN, tmp_path / "first.log", *overrides) as command:
        command.wait_until((checkpoints / "checkpoint-2/trainer_state.json").exists)
        command.kill()
        assert command.survivors() == []
    before = progress(output)
    with running(TRAIN, tmp_path / "second.log", *overrides) as command:
        assert command.wait() == 0, command.said
        assert command.survivors() == []

    steps = progress(output)
    resumed = [one["step"] for one in steps[len(before) :]]
    assert resumed[0] > 1
    assert resumed[-1] == 3
    assert all(0 < one["trained_on"] < 1 for one in steps)
    assert all(0 < one["resolved_rate"] < 1 for one in steps)
    assert all(one["prorl/reward/resolved"] == one["trained_on"] for one in steps)
    assert all(one["prorl/failed"] == 0 for one in steps)
    log = json.loads((checkpoints / "checkpoint-6/trainer_state.json").read_text())["log_history"]
    assert [one["step"] for one in log] == [1, 2, 3, 4, 5, 6]
    assert all(one["grad_norm"] > 0 for one in log)
    on_policy = [one for one in log if one.get("prorl/policy_lag") == 0]
    assert on_policy
    assert all(one["sampling/sampling_logp_difference/max"] < EXACT for one in on_policy)
    assert (output / "model/model.safetensors").exists()
    for run in (output / "runs").iterdir():
        assert "${" not in (run / "config.yaml").read_text()
        versions = json.loads((run / "versions.json").read_text())
        assert versions["packages"]["trl"] == version("trl")
        assert versions["commit"] == commit()
        assert versions["model"]["source"] == "made by the recipe"
    assert len(list((output / "runs").iterdir())) == 2


def test_an_incomplete_checkpoint_is_skipped(tmp_path: Path) -> None:
    states = [tmp_path / f"checkpoint-{step}/trainer_state.json" for step in (2, 9, 10, 11, 12)]
    for state in states:
        state.parent.mkdir()
    assert newest_checkpoint(tmp_path) is None
    for state in states[:4]:
        TrainerState().save_to_json(str(state))
    states[2].write_text(states[2].read_text()[:-9])
    states[3].write_text("")
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-9")
