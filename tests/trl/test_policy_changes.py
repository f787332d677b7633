"""Whatever changes the trainer's weights reaches the engines before the next rollout."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig
from transformers import TrainerCallback

from prorl_trl.fingerprint import fingerprint
from tests.trl.training import Trainings, pushed, worst


def double(model: Any) -> None:
    """Changes the policy as an average of weights does, past autograd's counters."""
    for name, parameter in model.named_parameters():
        if "layernorm" in name or "lora_B" in name:
            parameter.data = parameter.data * 2 + 0.1


class Doubling(TrainerCallback):  # type: ignore[misc]
    """Changes weights at one point of the trainer's life."""

    def __init__(self, event: str) -> None:
        setattr(self, event, lambda args, state, control, model, **_: double(model))


EVERY_SUBSTEP: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 1,
}


@pytest.mark.processes
@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("event", "options"),
    [
        ("on_substep_end", EVERY_SUBSTEP),
        ("on_step_end", {"eval_strategy": "steps", "eval_steps": 1}),
        ("on_evaluate", {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}),
        ("on_prediction_step", {"eval_strategy": "steps", "eval_steps": 1}),
        ("on_train_begin", {}),
        ("on_log", EVERY_SUBSTEP),
    ],
)
@pytest.mark.parametrize("peft_config", [None, LoraConfig(r=4, target_modules=["q_proj"])])
def test_weights_that_a_callback_changes_reach_the_engines(
    train: Trainings, event: str, options: dict[str, Any], peft_config: LoraConfig | None
) -> None:
    options = {"learning_rate": 1e-3, "num_generations_eval": 2, **options}
    options["per_device_eval_batch_size"] = 2
    trainer = train(options=options, callbacks=[Doubling(event)], peft_config=peft_config)
    assert worst(trainer) < 1e-4


@pytest.mark.processes
def test_training_again_from_an_earlier_step_is_on_policy(train: Trainings, tmp_path: Path) -> None:
    options = {
        "learning_rate": 1e-2,
        "save_strategy": "steps",
        "save_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "num_generations_eval": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_reward",
        "greater_is_better": False,
    }
    trainer = train.trainer(options=options)
    trainer.evaluate()
    trainer.train()
    trainer.evaluate()
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    trainer.evaluate()
    trainer.train()
    double(trainer.model)
    trainer.evaluate()
    assert worst(trainer) < 1e-4
    before = pushed(trainer)
    trainer.evaluate()
    assert pushed(trainer) == before


LAYERS: list[Callable[[], torch.nn.Module]] = [
    lambda: torch.nn.Linear(3, 5),
    lambda: torch.nn.Embedding(7, 3, dtype=torch.bfloat16),
    lambda: torch.nn.BatchNorm1d(4),
    lambda: torch.nn.Linear(2**10 + 1, 2**10 + 3),
]


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_each_change_of_a_single_element_changes_the_fingerprint(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from(LAYERS))()
    trainer = SimpleNamespace(model=model, accelerator=Accelerator(cpu=True))
    before = fingerprint(trainer)
    assert before is not None
    assert fingerprint(trainer) == before
    tensor = data.draw(st.sampled_from([*model.parameters(), *model.buffers()]))
    flat = tensor.data.view(-1)
    one, other = (data.draw(st.integers(0, len(flat) - 1)) for _ in range(2))
    kept = flat.clone()
    if data.draw(st.booleans()) and flat[one] != flat[other]:
        flat[[one, other]] = flat[[other, one]]  # the same numbers in other places
    else:
        flat[one] = torch.nextafter(flat[one], flat[one] + 1) if flat.is_floating_point() else 9
    assert torch.equal(kept, flat) == (fingerprint(trainer) == before)


def test_what_cannot_be_read_has_no_fingerprint() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    assert fingerprint(SimpleNamespace(model=model, accelerator=Accelerator(cpu=True))) is None
