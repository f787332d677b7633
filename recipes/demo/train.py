"""GRPO on the demo's tasks with TRL's stock trainer; all rollouts run in the service.

Only two arguments are particular to this service: `rollout_func` and `reward_funcs`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from tqdm.auto import tqdm
from transformers import AutoTokenizer, PrinterCallback, ProgressCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from prorl_service.schemas import Limits, Rollout, Task
from prorl_service.schemas.sampling import SamplerSpec
from prorl_trl import ProRLRollout, with_task
from recipes.demo.programs import task_for
from recipes.demo.tasks import LIMITS, instances

MAX_PER_FAMILY = 720
SUCCESS = "prorl/reward/correct"


@dataclass(frozen=True, slots=True)
class TrainConfig:
    seed: int = 0
    steps: int = 80
    """Batches of rollouts."""
    updates_per_step: int = 1
    """Optimizer steps on each batch."""
    groups_per_step: int = 8
    rollouts_per_group: int = 8
    rollouts_at_once: int | None = None
    """Rollouts that pass through the model together; None: all of a step."""
    learning_rate: float = 1e-3
    schedule: Literal["linear", "constant"] = "linear"
    limits: Limits = field(default_factory=lambda: LIMITS)
    dynamic_sampling: bool | SamplerSpec = False
    program: str | None = None
    """Program that takes the turns; None: the service's own loop."""
    use_cpu: bool = True

    @property
    def rollouts(self) -> int:
        return self.steps * self.groups_per_step * self.rollouts_per_group


def train_tasks(config: TrainConfig) -> list[Task]:
    """Returns one task for each group of the run, or as many as there are."""
    per_family = min(config.steps * config.groups_per_step // 2, MAX_PER_FAMILY)
    task_of = task_for(config.program)
    return [task_of(one) for one in instances("train", per_family, seed=config.seed)]


def train(
    model: Path,
    service_url: str,
    output: Path,
    config: TrainConfig,
    *,
    observe: Callable[[Sequence[Rollout]], None],
    tasks: Sequence[Task] | None = None,
) -> list[dict[str, Any]]:
    """Returns the trainer's log, one entry for each batch. The service then has the final weights.
    `tasks` replace the demo's."""
    trainer = make_trainer(model, service_url, output, config, observe=observe, tasks=tasks)
    trainer.add_callback(SuccessBar(config.steps))
    trainer.train()
    trainer.rollout_func.push_weights()
    return [entry for entry in trainer.state.log_history if "reward" in entry]


def make_trainer(
    model: Path,
    service_url: str,
    output: Path,
    config: TrainConfig,
    *,
    observe: Callable[[Sequence[Rollout]], None] | None = None,
    tasks: Sequence[Task] | None = None,
) -> GRPOTrainer:
    """Makes a stock trainer whose `rollout_func` is a `ProRLRollout`. `tasks` replace the
    demo's."""
    tasks = train_tasks(config) if tasks is None else tasks
    rollouts = ProRLRollout(
        service_url,
        limits=config.limits,
        observe=observe,
        dynamic_sampling=config.dynamic_sampling,
    )
    trainer = GRPOTrainer(
        model=str(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        args=_arguments(output, config),
        train_dataset=Dataset.from_list([dataset_row(task) for task in tasks]),
        rollout_func=rollouts,
        reward_funcs=rollouts.reward_funcs,
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer


def _arguments(output: Path, config: TrainConfig) -> GRPOConfig:
    batch = config.groups_per_step * config.rollouts_per_group
    return GRPOConfig(
        output_dir=str(output / "trainer"),
        seed=config.seed,
        max_steps=config.steps * config.updates_per_step,
        num_iterations=config.updates_per_step,
        per_device_train_batch_size=config.rollouts_at_once or batch,
        generation_batch_size=batch,
        gradient_accumulation_steps=batch // (config.rollouts_at_once or batch),
        num_generations=config.rollouts_per_group,
        max_completion_length=config.limits.max_response_tokens,
        temperature=1.0,
        # DAPO: token-level loss, a higher clip above than below, no KL term.
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        beta=0.0,
        vllm_importance_sampling_mode="token_truncate",
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.schedule,
        # fp32, so that the engine's logprobs can be compared with the trainer's to 1e-4.
        bf16=False,
        use_cpu=config.use_cpu,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    )


def dataset_row(task: Task) -> dict[str, list[dict[str, Any]]]:
    """Returns a row for TRL: a conversation that carries its task along."""
    prompt = with_task(
        [message.model_dump() for message in task.messages],
        task_id=task.task_id,
        agent=task.agent,
        data=task.data,
        image=task.image,
        solution=task.solution,
    )
    return {"prompt": prompt}


class SuccessBar(TrainerCallback):  # type: ignore[misc]
    """Progress bar of steps, with the share of rollouts that were right in the last one."""

    BLOCKS = "▁▂▃▄▅▆▇█"

    def __init__(self, steps: int) -> None:
        self._bar = tqdm(total=steps, desc="training", unit="step", dynamic_ncols=True)
        self._curve: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and SUCCESS in logs:
            self._curve.append(logs[SUCCESS])
            self._bar.set_postfix_str(f"success {logs[SUCCESS]:.2f} {self._spark()}")
            self._bar.update()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._bar.close()

    def _spark(self) -> str:
        recent = self._curve[-20:]
        return "".join(self.BLOCKS[min(7, int(value * 8))] for value in recent)
