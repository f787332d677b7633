"""`python -m recipes.math_code.train model=tiny trainer=tinker`: a real server, real sandboxes."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.recipes.commands import progress, running
from tests.recipes.math_code.runs import LORA, QUICK, check_trained, given

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.processes,
    pytest.mark.skipif(find_spec("skyrl") is None, reason="needs scripts/setup-tinker"),
]

TRAIN = "recipes.math_code.train"
TINKER = ("trainer=tinker", *QUICK, *LORA)
EXACT = 1e-5


@pytest.mark.on_demand
def test_mathematics_is_trained_on_and_continued(tmp_path: Path) -> None:
    output = tmp_path / "output"
    arguments = [*given("math", tmp_path), *TINKER]
    with running(TRAIN, tmp_path / "log", *arguments) as command:
        assert command.wait() == 0, command.said
        assert command.survivors() == []
    check_trained("math", output, last_step=2)
    first = [one["prorl/off_policy_max"] for one in progress(output)]
    assert max(first) < EXACT
    saved = json.loads((output / "checkpoints/tinker.json").read_text())
    assert saved["step"] == 2
    with running(TRAIN, tmp_path / "log2", *arguments, "steps=3") as command:
        assert command.wait() == 0, command.said
    assert [one["step"] for one in progress(output)] == [1, 2, 3]
    assert progress(output)[-1]["prorl/off_policy_max"] < EXACT


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.lora_rank=0", "adapters alone"),
        ("algorithm.kl_coefficient=0.1", "no KL term"),
    ],
)
def test_what_tinker_cannot_do_is_refused(override: str, message: str, tmp_path: Path) -> None:
    arguments = [*given("math", tmp_path), *TINKER, override, "--dry-run"]
    with running(TRAIN, tmp_path / "log", *arguments) as command:
        assert command.wait() == 1
        assert message in command.said
