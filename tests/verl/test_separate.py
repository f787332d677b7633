"""VeRL's `separate_async`: standalone engines keep sampling while the trainer trains on
mini-batches, and the trainer's hybrid engines join for validation and leave again."""

from pathlib import Path
from typing import Any

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from tests.verl.test_training import (
    DIFFERENCE,
    EXACT,
    assert_nothing_is_left,
    train,
    write_tasks,
)
from tests.verl.training import SERVICE_OPTIONS, weights_given

BATCH = 4
ENGINE = "actor_rollout_ref.rollout.checkpoint_engine"
SEPARATE: dict[str, object] = {
    "trainer.v1.trainer_mode": "separate_async",
    "trainer.v1.separate_async.parameter_sync_step": 2,
    "data.train_batch_size": BATCH,
    "actor_rollout_ref.actor.ppo_mini_batch_size": BATCH // 2,
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 1,
    f"{ENGINE}.backend": "file",
    f"{ENGINE}.custom_backend_module": "recipes.common.verl_cpu.checkpoint",
    "++ray_kwargs.ray_init.num_gpus": 2,
    "data.shuffle": False,
    "trainer.total_training_steps": 3,
    "trainer.test_freq": 2,
    "algorithm.filter_groups.enable": True,
    "algorithm.filter_groups.metric": "acc",
    "prorl.dynamic_sampling.oversubscription": 1,  # otherwise one step begins groups for the next
}
HYBRID, STANDALONE = 0, 1
STALENESS = "training/off_policy/trajectory_staleness_worst/max"

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.on_demand
def test_standalone_engines_keep_sampling_while_the_trainer_trains(directory: Path) -> None:
    """Informative tasks take longer than any step except the first."""
    tasks: list[dict[str, Any]] = [{"pause_s": 3}, {"easy": True}] * 8
    write_tasks(directory, *tasks)
    with local.service([], log=directory / "service.log", options=SERVICE_OPTIONS) as service:
        run = train(directory, service.url, **SEPARATE)
        assert_nothing_is_left(service, run)
        with RolloutClient(service.url) as client:
            assert client.backends() == []
    own, lent = weights_given(run, STANDALONE), weights_given(run, HYBRID)
    assert list(own) == [0, 1, 2, 3]
    assert lent == {step: own[step] for step in (0, 2, 3)}
    validated = [step for step in run.metrics if "val-core/tiny/acc/mean@1" in step]
    assert [step["training/global_step"] for step in validated] == [2, 3]

    assert max(run.values("training/off_policy/trajectory_spans/max")) == 2
    staleness = run.values(STALENESS)
    assert set(staleness) == {0, 1}
    # A mix-up of versions would show here.
    assert [value < EXACT for value in run.values(DIFFERENCE)] == [age == 0 for age in staleness]

    # VeRL draws twice a step; the metrics are those of the step.
    useless = run.values("prorl/sampling/uninformative")
    assert sum(useless) > 0
    expected = [BATCH / (BATCH + count) for count in useless]
    assert run.values("prorl/sampling/informative_share") == pytest.approx(expected)
