"""`python -m recipes.math_code.evaluate model=tiny`: the tiny model scored by the real graders."""

import json
import re
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.schemas import Rollout
from prorl_service.testing import StubApi
from prorl_service.testing.stubs import Messages
from tests.recipes.commands import running
from tests.recipes.math_code.runs import COUNT, SOLVED, given

pytestmark = [pytest.mark.timeout(1800), pytest.mark.processes]

EVALUATE = "recipes.math_code.evaluate"
SEEDS = 3
NUMBER = re.compile(r"\d+")


OPTIONS = (f"seeds={SEEDS}", "pass_at_k=[2,3]")


def test_code_is_scored(tmp_path: Path) -> None:
    overrides = [*given("code", tmp_path, "heldout"), *OPTIONS]
    with running(EVALUATE, tmp_path / "log", *overrides) as command:
        assert command.wait() == 0, command.said
        assert command.survivors() == []
    check_score("code", tmp_path)


def test_an_evaluation_continues_after_an_interruption(tmp_path: Path) -> None:
    output = tmp_path / "output"
    overrides = [*given("math", tmp_path, "heldout"), *OPTIONS]
    with running(EVALUATE, tmp_path / "first.log", *overrides) as command:
        command.wait_until(lambda: len(list(output.glob("rollouts/*.json"))) > SEEDS)
        command.kill()
    kept = {path: path.stat().st_mtime_ns for path in output.glob("rollouts/*.json")}
    assert SEEDS < len(kept) < COUNT * SEEDS
    with running(EVALUATE, tmp_path / "log", *overrides) as command:
        assert command.wait() == 0, command.said
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    check_score("math", tmp_path)


def adds(messages: Messages) -> str:
    """Adds two numbers, whatever is asked: right for each fourth problem."""
    return f"\\boxed{{{sum(map(int, NUMBER.findall(messages[-1]['content'])))}}}"


def test_a_model_behind_an_api_is_scored(tmp_path: Path) -> None:
    overrides = [*given("math", tmp_path, "heldout"), "seeds=2", "pass_at_k=[2]"]
    log = tmp_path / "service.log"
    with (
        StubApi(adds).in_thread() as api,
        local.service([f"openai:stub@{api.url}/v1"], log=log) as service,
        running(EVALUATE, tmp_path / "log", *overrides, f"service.url={service.url}") as command,
    ):
        assert command.wait() == 0, command.said
    result = json.loads((tmp_path / "output" / "score.json").read_text())
    assert (result["score"]["missing"], result["engines"]) == (0, ["stub"])
    assert result["score"]["pass_at_1"] == result["pass_at_k"]["2"]["share"] == 0.25
    assert len(api.requests) == 2 * COUNT


def check_score(task: str, directory: Path) -> None:
    """Checks that the score agrees with the rollouts."""
    output = directory / "output"
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
    assert "Not to be compared" in (directory / "log").read_text()
