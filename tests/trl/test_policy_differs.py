"""Rollouts are of the policy that the trainer trains: faults of each kind are noticed."""

import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOTrainer

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.off_policy import PolicyDiffers
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import Sampling
from prorl_trl import ProRLRollout
from prorl_trl.pushes import Pushes
from prorl_trl.represented import NotRepresented, Representation
from tests.trl.training import SERVICE_OPTIONS, TWO_TURNS, Trainings, logged, make_trainer

pytestmark = pytest.mark.processes
Dict = dict[str, Any]
EXACT: Dict = {"learning_rate": 1e-3, "max_steps": 4}


class At(TrainerCallback):  # type: ignore[misc]
    """Does something when the second step begins."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == 2:
            self.work()


def trip(trainer: GRPOTrainer, caplog: pytest.LogCaptureFixture) -> str:
    """Trains, and returns what was warned about, or ended training."""
    with caplog.at_level(logging.WARNING, "prorl_trl.taken"):
        try:
            trainer.train()
        except PolicyDiffers as error:
            return f"{error.message} {error.hint}"
    return caplog.text


def test_another_runs_weights_in_the_engine_are_noticed(
    train: Trainings,
    service_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = tmp_path / "other"
    build_tiny_model(other, tie_word_embeddings=True, initializer_range=0.1, seed=1)
    with RolloutClient(service_url) as client:
        [engine] = client.backends()

    def replace() -> None:
        """Replaces the weights behind the service's back, under the same version."""
        arguments = {"method": "reload_weights", "kwargs": {"weights_path": str(other)}}
        httpx.post(f"{engine.url}/collective_rpc", json=arguments).raise_for_status()

    trainer = train.trainer(options=EXACT)
    push = Pushes.push_if_changed

    def push_and_replace(pushes: Pushes) -> None:
        push(pushes)
        if trainer.state.global_step == 2:
            replace()

    monkeypatch.setattr(Pushes, "push_if_changed", push_and_replace)
    text = trip(trainer, caplog)
    assert "step 3: engine and trainer differ by" in text
    assert "another training or a person gave the engines other weights" in text
    assert "raw logprobs" not in text


def test_an_engine_that_nobody_updates_is_noticed(
    train_unweighted: Trainings, policy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = train_unweighted.trainer(weights="none")
    text = trip(trainer, caplog)
    assert "step 2: engine and trainer differ by" in text
    assert "not all of the policy reaches the engines" in text


@pytest.mark.filterwarnings("ignore:Model has:UserWarning")
def test_a_head_that_drifts_from_the_engines_is_noticed(
    service_url: str,
    policy: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check before the first push, which refuses it, is left out."""
    monkeypatch.setattr(Representation, "check", lambda *_: None)
    config = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"])
    rollouts = ProRLRollout(service_url, **TWO_TURNS)
    options = {"learning_rate": 1e-2, "max_steps": 3}
    trainer = make_trainer(rollouts, policy, tmp_path, options=options, peft_config=config)
    text = trip(trainer, caplog)
    assert "step 2: engine and trainer differ by" in text
    assert "ensure_weight_tying=True" in text


@pytest.mark.filterwarnings("ignore:Model has:UserWarning")
def test_a_head_that_is_trained_apart_is_refused_before_the_first_rollout(train: Trainings) -> None:
    config = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens"])
    trainer = train.trainer(peft_config=config)
    with pytest.raises(NotRepresented, match="ensure_weight_tying=True"):
        trainer.train()
    assert not train.observed


@pytest.fixture(params=["raw", "hot"])
def liar(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yields a service whose engine reports other logprobs than those it sampled with."""
    program = str(Path(__file__).with_name("lying_engine.py"))
    model = tmp_path / "peaked"
    build_tiny_model(model, tie_word_embeddings=True, initializer_range=0.5)
    command = [sys.executable, program, request.param, "--model", str(model)]
    with (
        local.running(command, log=tmp_path / "engine.log") as engine,
        local.service([engine.url], log=tmp_path / "s.log", options=SERVICE_OPTIONS) as service,
    ):
        yield service.url


def test_logprobs_of_another_temperature_are_noticed_at_once(
    train: Trainings, liar: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sampling = Sampling(temperature=0.5, max_tokens_per_turn=8)
    options = {"temperature": 0.5}
    trainer = train.trainer(
        url=liar, sampling=sampling, policy=tmp_path / "peaked", options=options
    )
    text = trip(trainer, caplog)
    assert "step 1: engine and trainer differ by" in text
    assert "processed_logprobs" in text
    assert "different temperatures" in text
    assert "ensure_weight_tying" not in text


def test_dropout_is_noticed_and_named(train: Trainings, caplog: pytest.LogCaptureFixture) -> None:
    config = LoraConfig(r=8, target_modules="all-linear", lora_dropout=0.5, init_lora_weights=False)
    trainer = train.trainer(options=EXACT, peft_config=config)
    assert "lora_dropout" in trip(trainer, caplog)


@pytest.mark.parametrize("fault", ["scale", "epsilon", "rotation"])
def test_a_cause_that_no_check_knows_is_noticed(
    train: Trainings, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """The trainer's forward is not the engine's any more, with the same weights."""

    def patch() -> None:
        inner = trainer.model.model
        if fault == "scale":
            inner.norm.register_forward_hook(lambda *arguments: arguments[-1] * 1.5)
        elif fault == "epsilon":
            inner.layers[0].input_layernorm.variance_epsilon = 1.0
        else:
            inner.rotary_emb.register_forward_hook(lambda *given: (given[-1][0], -given[-1][1]))

    trainer = train.trainer(options=EXACT, callbacks=[At(patch)])
    text = trip(trainer, caplog)
    # A changed epsilon does not always show in the few tokens of one step.
    assert re.search("step [34]: engine and trainer differ by", text), text
    assert "compute the model by different code" in text


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bf16": True},
        {"num_iterations": 2, "gradient_accumulation_steps": 2, "pad_to_multiple_of": 16},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "beta": 0.1},
        {"per_device_train_batch_size": 4, "steps_per_generation": 2, "loss_type": "grpo"},
        {"mask_truncated_completions": True, "max_completion_length": 12},
        {"learning_rate": 1e-4, "temperature": 0.7},
    ],
)
@pytest.mark.parametrize("peft_config", [None, LoraConfig(r=4, target_modules=["q_proj"])])
@pytest.mark.filterwarnings("ignore:mask_truncated_completions:UserWarning")
def test_clean_runs_are_silent(
    train: Trainings,
    caplog: pytest.LogCaptureFixture,
    options: Dict,
    peft_config: LoraConfig | None,
) -> None:
    options = {"num_generations_eval": 2, **EXACT, **options}
    sampling = Sampling(temperature=options.get("temperature", 1.0), max_tokens_per_turn=8)
    trainer = train(sampling=sampling, options=options, peft_config=peft_config)
    trainer.evaluate()
    assert "prorl_trl.taken" not in {record.name for record in caplog.records}
    measured = logged(trainer, "prorl/off_policy")
    if "mask_truncated_completions" not in options:  # which leaves steps nothing
        assert measured == pytest.approx(
            logged(trainer, "sampling/sampling_logp_difference/mean"), rel=0.01
        )
    assert max(measured, default=0.0) < (0.1 if options.get("bf16") else 1e-5)
