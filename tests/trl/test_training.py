"""`ProRLRollout` in real GRPO training on CPU, against a real service and engine."""

import math
from pathlib import Path
from statistics import fmean

import pytest

from prorl_service.client import RolloutClient
from prorl_service.schemas import Sampling
from tests.trl.training import Trainings, logged, pushed, worst

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("weights", ["auto", "directory"])
def test_engine_and_trainer_agree_on_every_token_after_every_update(
    train: Trainings, service_url: str, tmp_path: Path, weights: str
) -> None:
    target = tmp_path / "weights" if weights == "directory" else weights
    trainer = train(weights=target, options={"num_generations_eval": 2})
    assert len({rollout.rollout_id for rollout in train.observed}) == 16
    trainer.evaluate()
    assert worst(trainer) < 1e-4
    assert min(logged(trainer, "grad_norm")) > 0
    assert logged(trainer, "prorl/turns") == [2, 2]
    assert logged(trainer, "prorl/failed") == [0, 0]
    assert logged(trainer, "prorl/policy_lag") == [0, 0]
    assert all(0 <= reward <= 1 for reward in logged(trainer, "rewards/prorl_reward/mean"))
    with RolloutClient(service_url) as client:
        assert client.status().policy_version == pushed(trainer)[0] + 2
        names = ["loss", "grad_norm", "entropy", "eval_reward"]
        curves = client.training(metrics=names).metrics
    first = pushed(trainer)[0]
    for name, versions in zip(names, [*[[first, first + 1]] * 3, [first + 2]], strict=True):
        newest = [at for at in curves[name].policy_versions if at >= first]
        assert newest == versions
        assert curves[name].values[-len(newest) :] == pytest.approx(logged(trainer, name))


def test_weights_of_engines_can_be_left_alone_and_trl_measures_nothing_without_correction(
    train_unweighted: Trainings, unweighted_url: str
) -> None:
    with RolloutClient(unweighted_url) as client:
        before = client.status().policy_version
        # The comparison of logprobs would end this training: nobody updates the engine.
        trainer = train_unweighted(weights="none", importance_sampling="off")
        assert client.status().policy_version == before
    assert logged(trainer, "prorl/policy_lag") == []
    assert logged(trainer, "sampling/sampling_logp_difference/max") == []


def test_trl_updates_its_own_vllm_server(train_unweighted: Trainings) -> None:
    """Uses `use_vllm=True, vllm_mode="server"`, with an engine that only counts updates."""

    class VllmGeneration:
        updates = 0

        def sync_weights(self) -> None:
            self.updates += 1

    trainer = train_unweighted.trainer(options={"vllm_mode": "server"})
    trainer.use_vllm, trainer.vllm_generation = True, VllmGeneration()
    trainer._last_loaded_step = -1
    trainer.train()
    assert trainer.vllm_generation.updates == 2
    assert logged(trainer, "prorl/policy_lag") == []
    assert len(logged(trainer, "sampling/sampling_logp_difference/max")) == 2


def test_the_longest_segment_is_trained_on_and_the_rest_is_counted(train: Trainings) -> None:
    trainer = train(segments="longest", agent="forgetful")
    assert logged(trainer, "prorl/failed") == [0, 0]
    sampled = [
        [sum(segment.loss_mask) for segment in one.trajectory.segments]
        for one in train.observed
        if one.trajectory
    ]
    assert {len(one) for one in sampled} == {2}
    assert any(first > last > 0 for first, last in sampled)
    steps = [sampled[:8], sampled[8:]]
    trained = [fmean(max(one) for one in step) for step in steps]
    assert logged(trainer, "completions/mean_length") == pytest.approx(trained)
    left_out = [fmean(min(one) for one in step) for step in steps]
    assert logged(trainer, "prorl/left_out_tokens") == pytest.approx(left_out)
    assert worst(trainer) < 1e-4
    assert min(logged(trainer, "grad_norm")) > 0


def test_completion_length_limits_rollouts_and_cut_ones_are_not_trained_on(
    train: Trainings, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"max_steps": 1, "max_completion_length": 6}
    sampling = Sampling(max_tokens_per_turn=4)
    trainer = train(overlong="mask", sampling=sampling, options=options)
    assert logged(trainer, "prorl/overlong") == [1]
    assert logged(trainer, "grad_norm") == [0]
    assert not math.isnan(logged(trainer, "reward")[0])
    assert "nothing to learn from" in caplog.text
