"""AsyncGRPOTrainer trains on what its worker gave it, by the policy that it sends."""

import logging
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from transformers import TrainerCallback

from prorl_service.client.off_policy import PolicyDiffers
from prorl_trl.represented import NotRepresented
from tests.trl.async_training import (
    logged,
    make_async_trainer,
    make_config,
    make_worker,
    run_on_cpu,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Model has:UserWarning"),
    pytest.mark.processes,
]


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    run_on_cpu(monkeypatch)


@pytest.mark.parametrize("weight_sync_steps", [1, 2])
def test_a_clean_run_is_silent_and_exact(
    service_url: str,
    policy: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    weight_sync_steps: int,
) -> None:
    config = make_config(tmp_path, weight_sync_steps=weight_sync_steps, logging_steps=1)
    worker = make_worker(service_url, config)
    trainer = make_async_trainer(service_url, policy, config, worker)
    trainer.train()
    measured = logged(trainer, "prorl/off_policy")
    assert measured
    assert max(measured) < 1e-4
    assert "prorl_trl.async_taken" not in {record.name for record in caplog.records}


class At(TrainerCallback):  # type: ignore[misc]
    """Patches the trainer's forward before its first step."""

    def on_step_begin(self, *_: Any, model: Any, **__: Any) -> None:
        model.model.layers[0].input_layernorm.variance_epsilon = 1.0


def test_a_forward_that_is_not_the_engines_is_noticed(
    service_url: str, policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(tmp_path, max_steps=1)
    worker = make_worker(service_url, config)
    trainer = make_async_trainer(service_url, policy, config, worker, callbacks=[At()])
    with caplog.at_level(logging.WARNING, "prorl_trl.async_taken"):
        try:
            trainer.train()
            text = caplog.text
        except PolicyDiffers as error:
            text = f"{error.message} {error.hint}"
    assert "step 1: engine and trainer differ by" in text
    assert "compute the model by different code" in text


def test_changed_samples_end_training(service_url: str, policy: Path, tmp_path: Path) -> None:
    config = make_config(tmp_path)
    worker = make_worker(service_url, config)
    new_sample = worker._new_sample

    def changed(**fields: Any) -> Any:
        mask = fields["completion_mask"].copy()
        mask[-1] = 0
        return new_sample(**fields | {"completion_mask": mask})

    worker._new_sample = changed
    trainer = make_async_trainer(service_url, policy, config, worker)
    with pytest.raises(PolicyDiffers, match=r"step 1: the loss takes .* no sample of the worker"):
        trainer.train()


def test_a_head_that_is_trained_apart_is_refused_before_the_first_rollout(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    config = make_config(tmp_path)
    worker = make_worker(service_url, config)
    peft_config = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens"])
    trainer = make_async_trainer(service_url, policy, config, worker, peft_config=peft_config)
    with pytest.raises(NotRepresented, match="ensure_weight_tying=True"):
        trainer.train()
