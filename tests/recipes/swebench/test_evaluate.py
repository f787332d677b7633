"""`python -m recipes.swebench.evaluate`: with an oracle of known scores, and the tiny model."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.schemas import BackendState, FinishReason, Rollout
from prorl_service.testing import StubEngine
from recipes.swebench.oracle_policy import SUBMIT, edits, script, serving
from tests.recipes.commands import running
from tests.recipes.swebench.instances import TINY, instance, rows_of_tiny

pytestmark = [pytest.mark.timeout(1800), pytest.mark.processes]

EVALUATE = "recipes.swebench.evaluate"
FIXED = ("mako-1.3.5", "mistune-3.1.0")
SERVICE = ["--sandbox", "bubblewrap", "--warm-sandboxes", "0", "--wait-for-backend-s", "1"]
SERVICE += ["--max-attempts", "1"]


@contextmanager
def oracle(directory: Path, model: Path) -> Iterator[tuple[StubEngine, str]]:
    """Yields an engine and the URL of the service in front of it."""
    rows = [instance(name) for name in TINY]
    fixes = {row.instance_id: edits(row) if row.instance_id in FIXED else [] for row in rows}
    scripts = {name: [script([*steps, SUBMIT])] for name, steps in fixes.items()}
    log = directory / "service.log"
    with (
        serving(rows, model, scripts) as engine,
        local.service([engine.url], log=log, options=SERVICE) as service,
    ):
        yield engine, service.url


def evaluate(directory: Path, *overrides: str) -> dict[str, Any]:
    """Returns the score from `directory`/output. Raises `AssertionError` if the command fails."""
    with running(EVALUATE, directory / "evaluate.log", *_given(directory), *overrides) as command:
        assert command.wait() == 0, command.said
    score: dict[str, Any] = json.loads((directory / "output/score.json").read_text())
    return score


def wait_until_healthy(url: str) -> None:
    """Waits without a deadline: the test's own timeout is the budget."""
    with RolloutClient(url) as client:
        while client.backends()[0].state is not BackendState.HEALTHY:
            time.sleep(0.05)


def _given(directory: Path) -> list[str]:
    rows = directory / "rows.jsonl"
    if not rows.exists():
        rows_of_tiny(directory)
    return [f"data.rows={rows}", f"output={directory / 'output'}", "seeds=2"]


def test_rollouts_with_a_verdict_are_not_run_again(tmp_path: Path, tiny_model: Path) -> None:
    """Uses the oracle's engine under a model's name; any engine behind any service would do."""
    rollouts, log = tmp_path / "output/rollouts", tmp_path / "evaluate.log"
    with oracle(tmp_path, tiny_model) as (engine, url):
        chosen = [
            *("model=qwen3_8b", "data=offline", "sandbox=bubblewrap", f"service.url={url}"),
            # The oracle's tokens are short, so its replies have many.
            *("agent.max_tokens_per_turn=null", "agent.limits.max_response_tokens=null"),
        ]
        engine.generate_status = 500
        first = evaluate(tmp_path, *chosen)
        assert (first["score"]["missing"], first["score"]["pass_at_1"]) == (6, 0.0)
        kinds = re.findall(r"(\d) without a verdict: Backend", log.read_text())
        assert sum(map(int, kinds)) == 6

        engine.generate_status = 200
        wait_until_healthy(url)
        with running(EVALUATE, log, *_given(tmp_path), *chosen) as command:
            command.wait_until(lambda: bool(list(rollouts.glob("*.json"))))
            command.kill()
        kept = {path: path.stat().st_mtime_ns for path in rollouts.glob("*.json")}
        assert kept
        second = evaluate(tmp_path, *chosen)
        assert all(path.stat().st_mtime_ns == written for path, written in kept.items())

        calls = engine.calls
        third = evaluate(tmp_path, *chosen)
        assert engine.calls == calls
        with running(
            EVALUATE, log, *_given(tmp_path), *chosen, "agent.limits.max_turns=7"
        ) as command:
            assert command.wait() == 2
        assert "has verdicts of another evaluation; limits:" in log.read_text()
    assert second["score"] == third["score"]
    assert second["score"]["per_seed"] == [2 / 3, 2 / 3]
    assert second["score"]["missing"] == 0
    assert second["score"]["low"] < 2 / 3 < second["score"]["high"]
    _check_facts(second)
    fixed = Rollout.model_validate_json((rollouts / "mako-1.3.5.1.json").read_text())
    assert (fixed.reward, fixed.reward_components["fail_to_pass"]) == (1.0, 1.0)
    assert fixed.trajectory is not None
    assert fixed.trajectory.finish_reason is FinishReason.FINISHED
    assert len(fixed.trajectory.turns) == 2


def _check_facts(score: dict[str, Any]) -> None:
    assert score["thinking"] is True
    assert (score["sampling"]["temperature"], score["sampling"]["top_p"]) == (0.6, 0.95)
    assert score["model"] == "Qwen/Qwen3-8B"
    assert score["engines"] == ["stub"]
    assert score["grader"].startswith(score["service"])
    assert score["images"]["archives"] == 3
    assert score["published"]["qwen3_8b"][2:] == [9.6, 18.0]


def test_the_tiny_model_resolves_some(tmp_path: Path) -> None:
    score = evaluate(tmp_path, "model=tiny", "seeds=4")
    assert score["score"]["missing"] == 0
    assert 0 < score["score"]["pass_at_1"] < 1
    said = (tmp_path / "evaluate.log").read_text()
    assert "not to be compared with these" in said
    again = evaluate(tmp_path, "model=tiny", "seeds=4")
    assert again["score"] == score["score"]
