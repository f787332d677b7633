"""`python -m recipes.math_code.train model=tiny trainer=trl`: real trainer, real sandboxes."""

import json
from pathlib import Path

import pytest

from tests.recipes.commands import progress, running
from tests.recipes.math_code.runs import QUICK, check_trained, check_weights_changed, given

pytestmark = [pytest.mark.timeout(1800), pytest.mark.processes]

TRAIN = "recipes.math_code.train"
SETTINGS = ("trainer=trl", *QUICK, "algorithm.rollouts_per_device=8")
EXACT = 1e-4
"""Largest logprob difference in nats between engine and trainer, on tokens of the newest policy."""


@pytest.mark.parametrize("task", ["code", "stem"])
def test_code_and_stem_are_trained_on(task: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with running(TRAIN, tmp_path / "log", *given(task, tmp_path), *SETTINGS) as command:
        assert command.wait() == 0, command.said
        assert command.survivors() == []
    check_trained(task, output, last_step=2)
    check_weights_changed(output, output / "model")
    state = json.loads((output / "checkpoints/checkpoint-2/trainer_state.json").read_text())
    log = state["log_history"]
    assert all(one["prorl/failed"] == 0 for one in log)
    assert all(one["grad_norm"] > 0 for one in log)
    assert log[0]["sampling/sampling_logp_difference/max"] < EXACT


def test_training_on_mathematics_continues_after_a_kill(tmp_path: Path) -> None:
    output = tmp_path / "output"
    overrides = [*given("math", tmp_path), *SETTINGS, "steps=3"]
    with running(TRAIN, tmp_path / "first.log", *overrides) as command:
        command.wait_until((output / "checkpoints/checkpoint-1/trainer_state.json").exists)
        command.kill()
        assert command.survivors() == []
    before = len(progress(output))
    with running(TRAIN, tmp_path / "second.log", *overrides) as command:
        assert command.wait() == 0, command.said
    assert progress(output)[before]["step"] > 1
    check_trained("math", output, last_step=3)
    check_weights_changed(output, output / "model")
