"""`python -m recipes.math_code.train trainer=trl`, killed and started again."""

from pathlib import Path

import pytest

from tests.recipes.commands import progress, running
from tests.recipes.math_code.runs import TRL, check_trained, check_weights_changed, given

pytestmark = [pytest.mark.timeout(1800), pytest.mark.processes]


@pytest.mark.parametrize("task", ["math", "look"])
def test_training_continues_after_a_kill(task: str, tmp_path: Path) -> None:
    """What has ended is not trained further."""
    output = tmp_path / "output"
    overrides = [*given(task, tmp_path), *TRL, "steps=3"]
    with running("recipes.math_code.train", tmp_path / "first.log", *overrides) as command:
        command.wait_until((output / "checkpoints/checkpoint-1/trainer_state.json").exists)
        command.kill()
        assert command.survivors() == []
    before = len(progress(output))
    with running("recipes.math_code.train", tmp_path / "second.log", *overrides) as command:
        assert command.wait() == 0, command.said
    assert progress(output)[before]["step"] > 1
    check_trained(task, output, last_step=3)
    check_weights_changed(output, output / "model")
    steps, trained = progress(output), (output / "model/model.safetensors").read_bytes()
    with running("recipes.math_code.train", tmp_path / "third.log", *overrides) as command:
        assert command.wait() == 0, command.said
    assert progress(output) == steps
    assert (output / "model/model.safetensors").read_bytes() == trained
