"""VeRL's stock command on tasks in Harbor's format, each in a container of its image."""

from pathlib import Path

import pytest

from prorl_service import local
from prorl_verl import task_payload
from tests.agents.harbor.directories import directory as task_directory
from tests.verl.data import row, write_rows
from tests.verl.training import run_main_ppo

pytestmark = pytest.mark.timeout(1800)

LUCK = "printf '0.%05d' $RANDOM > /logs/verifier/reward.txt\n"
"""Verifier for a policy with random weights, which solves nothing."""


@pytest.mark.on_demand
def test_harbor_tasks_are_trained_on(directory: Path, tmp_path: Path) -> None:
    task = task_directory(tmp_path / "task", test=LUCK).task()
    payload = task_payload(task_id=task.task_id, agent=task.agent, image=task.image, data=task.data)
    rows = [row(task.messages[0].content, index=index) | {"prorl": payload} for index in range(8)]
    write_rows(directory / "train.parquet", rows)
    write_rows(directory / "val.parquet", rows[:2])
    with local.service([], log=tmp_path / "service.log", options=[]) as service:
        run = run_main_ppo(
            directory,
            {
                "--config-name": "prorl_ppo_trainer",
                "rollout": "prorl",
                "prorl.url": service.url,
                "prorl.limits.eval_timeout_s": 200,
                "prorl.max_tokens_per_turn": 10,
                "data.max_response_length": 40,
                # The tiny model's tokens are bytes, and the agent's tools are described in 2 kB.
                "data.max_prompt_length": 2500,
                "actor_rollout_ref.rollout.max_model_len": 4096,
            },
        )
    steps = [one for one in run.metrics if "prorl/reward" in one]
    assert len(steps) == 2
    assert all(one["training/rollout_probs_diff_max"] < 1e-6 for one in steps)
    assert all(one["actor/grad_norm"] > 0 for one in steps)
    assert all(0 < one["prorl/reward"] < 0.4 for one in steps)
    assert all(one["prorl/reward/verifier_broken"] == 0 for one in steps)
    assert run.survivors == []
