"""The example for VeRL, run as it is but for settings of a CPU and a tiny model."""

import os
import sys
from pathlib import Path

import pytest

from prorl_service import local
from tests.verl.training import ROOT, run_main_ppo

pytestmark = pytest.mark.timeout(1800)


def test_the_example_trains(directory: Path) -> None:
    tasks = directory / "outputs/train_verl/train.parquet"
    with local.service([], log=directory / "service.log") as service:
        run = run_main_ppo(
            directory,
            {
                "prorl.url": service.url,
                "prorl.max_tokens_per_turn": 10,
                "data.train_files": tasks,
                "data.val_files": tasks,
                "data.max_prompt_length": 700,
                "data.max_response_length": 200,
                "actor_rollout_ref.rollout.max_model_len": 1024,
            },
            {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            program=("sh", str(ROOT / "examples/train_verl.sh"), str(directory / "model")),
        )
    steps = [one for one in run.metrics if "prorl/turns" in one]
    assert [one["prorl/failed"] for one in steps] == [0, 0]
    assert run.survivors == []
