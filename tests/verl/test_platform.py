"""Stock verl on the CPU platform, without the plug-in: the basis of the other tests."""

from pathlib import Path

import pytest

from tests.verl.data import write_counting_tasks
from tests.verl.training import ROOT, run_main_ppo, weights_given

pytestmark = pytest.mark.timeout(1800)
REWARD = {
    "reward.custom_reward_function.path": ROOT / "tests/verl/rewards.py",
    "reward.custom_reward_function.name": "lower_case",
}


@pytest.fixture
def directory(tmp_path: Path, policy: Path) -> Path:
    (tmp_path / "model").symlink_to(policy)
    write_counting_tasks(tmp_path)
    return tmp_path


@pytest.mark.on_demand
def test_stock_verl_trains_in_step_with_its_rollouts(directory: Path) -> None:
    run = run_main_ppo(directory, REWARD)
    assert [step["training/global_step"] for step in run.metrics] == [1, 2]
    # The second step was sampled with the weights that the first step made.
    assert max(run.values("training/rollout_probs_diff_max")) < 1e-6
    assert min(run.values("actor/grad_norm")) > 0
    assert list(weights_given(run)) == [0, 1, 2]
    assert run.survivors == []
