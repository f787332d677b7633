"""VeRL's model sees the pictures of each row, of its task and of its tools.

A random policy has logprobs that depend on what it sees; one that imitates looks with a tool.
"""

from itertools import islice
from pathlib import Path

import pytest

from prorl_service import local
from prorl_verl import task_payload
from recipes.math_code.offline.look import Look, instances, policy
from tests.verl.data import row, write_rows
from tests.verl.training import run_main_ppo

pytestmark = pytest.mark.timeout(1800)

PRORL = {
    "--config-name": "prorl_ppo_trainer",
    "rollout": "prorl",
    "prorl.limits.max_turns": 2,
    "data.max_response_length": 64,
}
DIFFERENCE = "training/rollout_probs_diff_max"
EXACT = 1e-5


def row_of(look: Look, index: int) -> dict[str, object]:
    task = look.task()
    messages = [one.model_dump() for one in task.messages]
    payload = task_payload(task_id=task.task_id, agent="math", data=task.data, messages=messages)
    return row(task.messages[0].content, index=index) | {"prorl": payload}


@pytest.mark.parametrize("is_random", [True, pytest.param(False, marks=pytest.mark.on_demand)])
def test_its_trainer_sees_what_the_policy_saw(
    is_random: bool, seeing_model: Path, tmp_path: Path
) -> None:
    model = seeing_model if is_random else policy(tmp_path / "cache")
    (tmp_path / "model").symlink_to(model)
    kinds = [instances("train", seed=0, is_file=is_file) for is_file in (False, not is_random)]
    looks = [one for kind in kinds for one in islice(kind, 4)]
    rows = [row_of(one, number) for number, one in enumerate(looks)]
    write_rows(tmp_path / "train.parquet", rows)
    write_rows(tmp_path / "val.parquet", rows[:2])
    options = ["--sandbox", "process"]
    with local.service([], log=tmp_path / "service.log", options=options) as service:
        run = run_main_ppo(tmp_path, {**PRORL, "prorl.url": service.url})
    steps = [one for one in run.metrics if DIFFERENCE in one]
    assert len(steps) == 2
    assert max(one[DIFFERENCE] for one in steps) < EXACT
    assert is_random or all(one["prorl/failed"] == 0 for one in steps)
    assert is_random or any(one["actor/grad_norm"] > 0 for one in steps)
