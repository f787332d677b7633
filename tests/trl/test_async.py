"""AsyncGRPOTrainer in real training on CPU, against a real service and engine."""

import logging
import math
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.off_policy import PolicyDiffers
from prorl_service.schemas import Limits, RolloutState, Sampling, Segment
from prorl_trl.async_rollouts import RolloutWorkerFailed
from prorl_trl.convert import GroupMaker
from prorl_trl.represented import NotRepresented
from tests.trl.async_training import AsyncTrainings, is_idle, own_service, run_on_cpu, until
from tests.trl.base_model import END_OF_TURN, with_split_eos
from tests.trl.conftest import started
from tests.trl.training import TWO_TURNS, dataset, logged

pytestmark = pytest.mark.processes


@pytest.fixture
def train(
    service_url: str, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncTrainings:
    run_on_cpu(monkeypatch)
    return AsyncTrainings(service_url, policy, tmp_path)


@pytest.mark.parametrize("peft_config", [None, LoraConfig(r=4, target_modules=["q_proj"])])
def test_the_engine_has_the_policy_of_the_last_step(
    train: AsyncTrainings, service_url: str, tmp_path: Path, peft_config: LoraConfig | None
) -> None:
    trainer = train(train.config(max_steps=2), peft_config=peft_config)
    assert min(logged(trainer, "grad_norm")) > 0
    model = trainer.model.merge_and_unload() if peft_config else trainer.model
    model.save_pretrained(tmp_path / "trained")
    maker = GroupMaker(None, TWO_TURNS["sampling"], Limits(max_response_tokens=40))
    group = maker.group(f"after-{uuid.uuid4().hex}", dataset([None])[0]["prompt"], 1)
    with RolloutClient(service_url) as client:
        newest = client.status().policy_version
        client.submit([group])
        [sampled] = client.wait(group.rollout_ids(), 60)
    assert sampled.trajectory is not None
    [segment] = sampled.trajectory.segments
    assert set(segment.policy_versions) == {newest, -1}
    assert largest_difference(tmp_path / "trained", segment) < 1e-4
    assert largest_difference(train.policy, segment) > 1e-3


def largest_difference(trained: Path, segment: Segment) -> float:
    """Returns the largest difference of a logprob between engine and trainer."""
    model = AutoModelForCausalLM.from_pretrained(trained)
    ids = torch.tensor([segment.prompt_ids + segment.response_ids])
    with torch.no_grad():
        logprobs = model(ids).logits.log_softmax(-1)[0, len(segment.prompt_ids) - 1 : -1]
    ours = logprobs.gather(1, torch.tensor(segment.response_ids)[:, None])[:, 0]
    mask = torch.tensor(segment.loss_mask).bool()
    return float((ours - torch.tensor(segment.logprobs))[mask].abs().max())


def test_rollouts_stay_fresh_and_failed_ones_do_not_stop_training(
    train: AsyncTrainings, service_url: str
) -> None:
    trainer = train(train.config(max_steps=6), faults=[None, "easy", "agent", None])
    observed = train.observed
    versions = [one.oldest_policy_version for one in observed if one.state is RolloutState.DONE]
    assert versions[0] is not None
    assert max(version for version in versions if version is not None) > versions[0] + 1
    assert max(logged(trainer, "sample/staleness_max")) <= 2
    assert math.isclose(logged(trainer, "ratio")[0], 1, abs_tol=1e-4)
    assert logged(trainer, "kl")[0] < 1e-6
    assert sum(logged(trainer, "prorl/sampling/failed_total")) > 0
    assert sum(logged(trainer, "prorl/sampling/uninformative_total")) > 0
    assert min(logged(trainer, "reward_std")) > 0
    assert {one.state for one in observed} == {RolloutState.DONE, RolloutState.FAILED}
    assert is_idle(service_url)


def test_groups_are_drawn_from_a_sampler(train: AsyncTrainings, service_url: str) -> None:
    trainer = train(faults=[None, "agent", None, "easy"], dynamic_sampling=True)
    rewards = [one.reward for one in train.observed]
    groups = [rewards[start : start + 4] for start in range(0, len(rewards), 4)]
    assert len(groups) >= 8
    assert all(len(set(group)) > 1 for group in groups)
    assert {one.state for one in train.observed} == {RolloutState.DONE}
    assert max(logged(trainer, "sample/staleness_max")) <= 2
    assert sum(logged(trainer, "prorl/sampling/failed_total")) > 0
    assert sum(logged(trainer, "prorl/sampling/uninformative_total")) > 0
    assert is_idle(service_url)


def test_a_dead_service_ends_training_and_is_named(
    train: AsyncTrainings, service_url: str, tmp_path: Path
) -> None:
    """The weights go to another service, so that the worker is the first to notice."""
    with own_service(service_url, tmp_path, local.free_port()) as service:

        def kill_once_rollouts_run() -> None:
            with RolloutClient(service.url) as client:
                until(lambda: client.status().rollouts.get(RolloutState.INIT, 0) > 0)
            service.kill()

        trainer = train.trainer(
            url=service.url, weights_url=service_url, faults=["hang"], deadline_s=1
        )
        with ThreadPoolExecutor(1) as killer:
            killed = killer.submit(kill_once_rollouts_run)
            with pytest.raises(RolloutWorkerFailed, match=r"ConnectError(.|\n)*prorl serve"):
                trainer.train()
            killed.result()


def test_a_base_model_is_trained_on_rollouts_that_its_template_ends(
    train: AsyncTrainings, policy: Path, tmp_path: Path
) -> None:
    """Some rollouts end on its template's token, some say that they finished after a cut turn."""
    model = with_split_eos(policy, tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(model)
    with started(model, tmp_path) as url:
        trainer = train(
            train.config(max_steps=1),
            url=url,
            policy=model,
            agent="hasty",
            tokenizer=tokenizer,
            sampling=Sampling(max_tokens_per_turn=4, seed=0),
            overlong="mask",
        )
    trajectories = [one.trajectory for one in train.observed if one.trajectory]
    ends = {one.segments[-1].response_ids[-1] for one in trajectories}
    assert {tokenizer.convert_tokens_to_ids(END_OF_TURN)} < ends
    assert set(logged(trainer, "prorl/failed")) == {0}
    assert logged(trainer, "grad_norm")[0] > 0


# --- what the trainer takes ----------------------------------------------------------------------


@pytest.mark.parametrize("weight_sync_steps", [1, 2])
def test_a_clean_run_is_silent_and_exact(
    train: AsyncTrainings,
    service_url: str,
    caplog: pytest.LogCaptureFixture,
    weight_sync_steps: int,
) -> None:
    with RolloutClient(service_url) as client:
        before = client.status().policy_version
    trainer = train(train.config(weight_sync_steps=weight_sync_steps, logging_steps=1))
    measured = logged(trainer, "prorl/off_policy")
    assert measured
    assert max(measured) < 1e-4
    assert "prorl_trl.taken" not in {record.name for record in caplog.records}
    with RolloutClient(service_url) as client:
        reported = client.training(metrics=["loss", "grad_norm"]).metrics
    assert [curve.policy_versions[-1] > before for curve in reported.values()] == [True, True]


class At(TrainerCallback):  # type: ignore[misc]
    """Patches the trainer's forward before its first step."""

    def on_step_begin(self, *_: Any, model: Any, **__: Any) -> None:
        model.model.layers[0].input_layernorm.variance_epsilon = 1.0


def test_a_forward_that_is_not_the_engines_is_noticed(
    train: AsyncTrainings, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = train.trainer(train.config(max_steps=1), callbacks=[At()])
    with caplog.at_level(logging.WARNING, "prorl_trl.taken"):
        try:
            trainer.train()
            text = caplog.text
        except PolicyDiffers as error:
            text = f"{error.message} {error.hint}"
    assert "step 1: engine and trainer differ by" in text
    assert "compute the model by different code" in text


def test_changed_samples_end_training(train: AsyncTrainings) -> None:
    trainer = train.trainer()
    worker = trainer.rollout_worker
    new_sample = worker._new_sample

    def changed(**fields: Any) -> Any:
        mask = fields["completion_mask"].copy()
        mask[-1] = 0
        return new_sample(**fields | {"completion_mask": mask})

    worker._new_sample = changed
    with pytest.raises(PolicyDiffers, match=r"step 1: the loss takes .* no sample of the worker"):
        trainer.train()


@pytest.mark.filterwarnings("ignore:Model has:UserWarning")
def test_a_head_that_is_trained_apart_is_refused_before_the_first_rollout(
    train: AsyncTrainings,
) -> None:
    peft_config = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens"])
    with pytest.raises(NotRepresented, match="ensure_weight_tying=True"):
        train(peft_config=peft_config)
