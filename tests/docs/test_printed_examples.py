"""Examples of the pages that need no service: data.md, operations.md,
math_code_science.md, traces.md and settings.md of the reference, as they are printed."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from prorl_service.agents.math import MathAgent
from prorl_service.agents.reasoning_gym import ReasoningGymData
from prorl_service.client.saved import SavedStep, StepFiles, read_rollouts
from prorl_service.schemas import Task
from prorl_service.testing import play
from tests.cli.try_process import done
from tests.docs.printed import blocks

pytestmark = pytest.mark.processes

PRORL = [sys.executable, "-m", "prorl_service.cli"]


@pytest.mark.parametrize("page", ["operations.md", "reference/settings.md"])
def test_files_of_options_are_taken(page: str, tmp_path: Path) -> None:
    [options, *_] = blocks(page, "yaml")
    (tmp_path / "options.yaml").write_text(options)
    # The one wrong option is named only if those of the file are right.
    command = [*PRORL, "serve", "--config", "options.yaml", "--port", "70000"]
    assert done(command, tmp_path).stderr.startswith("prorl: --port: ")


def test_the_puzzle_is_a_task() -> None:
    task = Task.model_validate(
        {**json.loads(blocks("math_code_science.md", "json")[2]), "task_id": "a"}
    )
    assert ReasoningGymData.model_validate(task.data).generator == "chain_sum"


async def test_saved_rollouts_are_read_and_rewarded_again(tmp_path: Path) -> None:
    task = {"messages": [{"role": "user", "content": "17 * 3?"}], "data": {"answer": "51"}}
    played = await play(MathAgent, task, [r"\boxed{51}"])
    directory = tmp_path / "runs" / "a" / "rollouts"
    saved = StepFiles(directory)
    saved.add_tasks([Task(task_id="play", agent="math", **task)])
    saved.add(SavedStep(1), [played.rollout])
    saved.finish_all()
    reading, reward = blocks("data.md", "python")[1], blocks("data.md", "python")[-1]
    (tmp_path / "my_reward.py").write_text(reward)
    (tmp_path / "read.py").write_text(f"{reading}    print(rewards)\n")
    assert done([sys.executable, "read.py"], tmp_path).stdout == "[1.0]\n"
    command = [*PRORL, "replay", "runs/a/rollouts", "--reward", "my_reward.py:shorter"]
    assert done([*command, "--out", "again"], tmp_path).returncode == 0
    [again] = read_rollouts(tmp_path / "again" / SavedStep(1).file_name)
    assert again.reward is not None
    assert 0.9 < again.reward < 1.0


def test_dashboard_and_rules_are_written(tmp_path: Path) -> None:
    grafana, alerts = blocks("traces.md", "sh")[1:]
    for command in (grafana, alerts):
        words, _, file = command.partition("#")[0].partition(">")
        ended = done([*PRORL, *words.split()[1:]], tmp_path)
        assert ended.returncode == 0, ended.stderr
        (tmp_path / file.strip()).write_text(ended.stdout)
    assert json.loads((tmp_path / "prorl.json").read_text())["panels"]
    [configuration] = blocks("traces.md", "yaml")
    [rules] = yaml.safe_load(configuration)["rule_files"]
    assert yaml.safe_load((tmp_path / rules).read_text())["groups"]
