"""`python -m recipes.math_code.evaluate model=tiny`: the tiny model, scored by the real graders."""

import json
from pathlib import Path

import pytest

from prorl_service.schemas import Rollout
from tests.recipes.commands import running
from tests.recipes.math_code.runs import COUNT, SOLVED, given

pytestmark = pytest.mark.timeout(600)

EVALUATE = "recipes.math_code.evaluate"
SEEDS = 3


@pytest.mark.parametrize("task", ["math", "code"])
def test_a_score_can_be_interrupted_and_says_what_it_is_of(task: str, tmp_path: Path) -> None:
    output, log = tmp_path / "output", tmp_path / "log"
    overrides = [*given(task, tmp_path, "heldout"), f"seeds={SEEDS}", "pass_at_k=[2,3]"]
    with running(EVALUATE, log, *overrides) as command:
        command.wait_until(lambda: len(list(output.glob("rollouts/*.json"))) > SEEDS)
        command.kill()
    kept = {path: path.stat().st_mtime_ns for path in output.glob("rollouts/*.json")}
    with running(EVALUATE, log, *overrides) as command:
        assert command.wait() == 0, command.said
        assert command.survivors() == []
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())

    rollouts = [
        Rollout.model_validate_json(path.read_text()) for path in output.glob("rollouts/*.json")
    ]
    assert len(rollouts) == COUNT * SEEDS
    solved = sum(one.reward == 1.0 for one in rollouts) / len(rollouts)
    result = json.loads((output / "score.json").read_text())
    assert result["score"]["missing"] == 0
    assert 0 < solved < 1
    assert result["score"]["pass_at_1"] == pytest.approx(solved)
    assert result["components"][f"prorl/reward/{SOLVED[task]}"] == pytest.approx(solved)
    twice, thrice = result["pass_at_k"]["2"], result["pass_at_k"]["3"]
    assert result["score"]["pass_at_1"] < twice["share"] < thrice["share"]
    assert twice["low"] < twice["share"] < twice["high"]
    assert result["thinking"] is None
    assert result["sampling"]["temperature"] == 1.0
    assert result["grader"].startswith(result["service"])
    assert "Not to be compared" in log.read_text()
