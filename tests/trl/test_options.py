"""Other options that users of GRPOTrainer turn on, with rollouts of the service."""

from pathlib import Path
from typing import Any

import pytest
from trl import GRPOConfig, GRPOTrainer

from prorl_service.client import RolloutClient
from prorl_service.schemas import Message, Rollout, Task
from prorl_trl import ProRLSpec
from tests.trl.training import SMALL, TWO_TURNS, Trainings, logged, worst

pytestmark = pytest.mark.processes


def test_one_generation_serves_several_steps(train: Trainings) -> None:
    """Uses gradient accumulation, several optimizer steps per generation, and each batch twice."""
    options = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "num_iterations": 2,
        "max_steps": 8,
    }
    trainer = train(options=options)
    assert trainer.state.global_step == 8
    assert len(train.observed) == 2 * 16  # two generations of 4 x 4 rollouts, each for four steps
    assert logged(trainer, "prorl/failed") == [0, 0]
    assert worst(trainer) < 1e-4


@pytest.mark.parametrize("dynamic", [False, True])
def test_training_is_resumed_from_a_checkpoint(
    train: Trainings,
    service_url: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    dynamic: bool,
) -> None:
    """The service gets the checkpoint's weights again; other prompts begin in another order."""
    caplog.set_level("INFO", "prorl_trl")
    options = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    train(dynamic_sampling=dynamic, options=options)
    before = version_at(service_url)
    trainer = train.trainer(dynamic_sampling=dynamic, options=options | {"max_steps": 2})
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert trainer.state.global_step == 2
    assert logged(trainer, "prorl/policy_lag")[-1] == 0
    assert logged(trainer, "sampling/sampling_logp_difference/max")[-1] < 1e-4
    assert version_at(service_url) == before + 1
    said = "training resumes at step 1: dynamic sampling takes other prompts in another order"
    assert (said in caplog.text) == dynamic


def version_at(url: str) -> int:
    with RolloutClient(url) as client:
        version = client.status().policy_version
    assert version is not None
    return version


def test_a_spec_provides_the_trainers_arguments(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    def task(number: int) -> Task:
        message = Message(role="user", content=f"count to {number}")
        return Task(task_id=f"t{number}", agent="letters", messages=[message], data={"x": number})

    observed: list[Rollout] = []
    options: dict[str, Any] = {**TWO_TURNS, "observe": observed.extend}
    spec = ProRLSpec(service_url, [task(1), task(2)], [task(3)], **options)
    trainer = GRPOTrainer(
        model=str(policy),
        args=GRPOConfig(output_dir=str(tmp_path), **SMALL | {"max_steps": 1}),
        train_dataset=spec.train_dataset,
        eval_dataset=spec.eval_dataset,
        rollout_func=spec.rollout_func,
        reward_funcs=spec.reward_funcs,
    )
    trainer.train()
    assert {one.task_id for one in observed} == {"t1", "t2"}
    assert logged(trainer, "prorl/failed") == [0]
