"""`python -m recipes.math_code.train model=tiny trainer=trl`: real trainer, real sandboxes."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from prorl_service.tokens.chat import ChatFormat
from tests.recipes.commands import running
from tests.recipes.math_code.runs import LORA, TRL, check_trained, check_weights_changed, given

pytestmark = [pytest.mark.timeout(1800), pytest.mark.processes]

TRAIN = "recipes.math_code.train"
EXACT = 1e-4
"""Largest logprob difference in nats between engine and trainer, on tokens of the newest policy."""


@pytest.mark.parametrize(
    ("task", "others"), [("code", ()), ("stem", LORA), ("look", ())], ids=["all", "lora", "look"]
)
def test_problems_are_trained_on(task: str, others: Sequence[str], tmp_path: Path) -> None:
    output = tmp_path / "output"
    with running(TRAIN, tmp_path / "log", *given(task, tmp_path), *TRL, *others) as command:
        assert command.wait() == 0, command.said
        assert command.survivors() == []
    check_trained(task, output, last_step=2)
    check_weights_changed(output, output / "model")
    assert (ChatFormat.load(output / "model").pictures is not None) == (task == "look")
    state = json.loads((output / "checkpoints/checkpoint-2/trainer_state.json").read_text())
    log = state["log_history"]
    assert all(one["prorl/failed"] == 0 for one in log)
    assert all(one["grad_norm"] > 0 for one in log)
    assert log[0]["sampling/sampling_logp_difference/max"] < EXACT
