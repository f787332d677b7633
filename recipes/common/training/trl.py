"""Trains with TRL's stock GRPOTrainer, on the plug-in's `ProRLSpec` and a GRPOConfig."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from accelerate import PartialState
from peft import LoraConfig
from transformers import (
    AutoTokenizer,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerState,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOConfig, GRPOTrainer

from prorl_service.schemas import Task
from prorl_service.schemas.sampling import SamplerSpec
from prorl_service.schemas.suggestions import nearest
from prorl_trl import ProRLSpec
from recipes.common.settings import BadSettings, Training
from recipes.common.training.progress import Progress

PROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""Files of a model that its tokenizer is not saved with."""


def train(settings: Training, tasks: Sequence[Task], model: Path, url: str) -> None:
    """Trains, and saves the model in `model` of the output. Raises `BadSettings`."""
    algorithm = settings.algorithm
    # A policy version is one optimizer step.
    sampler = SamplerSpec(
        max_staleness=algorithm.max_staleness * algorithm.updates_per_step,
        curriculum=algorithm.curriculum,
    )
    shared = str((settings.output / "weights").absolute())
    spec = ProRLSpec(
        url,
        tasks,
        limits=settings.agent.limits,
        sampling=settings.sampling,
        dynamic_sampling=sampler if algorithm.dynamic_sampling else False,
        weights=shared if settings.model.engine == "vllm" else "stream",
        **settings.trainer.rollouts,
    )
    trainer = GRPOTrainer(
        model=str(model),
        # TRL would take the whole processor: that of a model that sees needs torchvision.
        processing_class=AutoTokenizer.from_pretrained(model),
        args=arguments(settings),
        train_dataset=spec.train_dataset,
        rollout_func=spec.rollout_func,
        reward_funcs=spec.reward_funcs,
        peft_config=_lora(algorithm.lora_rank),
        callbacks=[_ShowProgress(settings)],
    )
    for callback in (PrinterCallback, ProgressCallback):  # they print everything that is logged
        trainer.remove_callback(callback)
    checkpoint = newest_checkpoint(Path(trainer.args.output_dir))
    if checkpoint is not None:
        _restore(trainer, checkpoint, has_adapters=algorithm.lora_rank > 0)
    # What has ended would be trained for one step more.
    if checkpoint is None or step_of(checkpoint) < trainer.args.max_steps:
        trainer.train(resume_from_checkpoint=checkpoint)
    if algorithm.lora_rank:
        trainer.model = trainer.model.merge_and_unload()
    trainer.save_model(str(settings.output / "model"))
    for name in PROCESSORS:  # of a model that sees
        if (file := model / name).exists():
            shutil.copy(file, settings.output / "model")


def _lora(rank: int) -> LoraConfig | None:
    """Returns the adapters' configuration with a scale of 1, or None for rank 0."""
    if not rank:
        return None
    return LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear", task_type="CAUSAL_LM")


def arguments(settings: Training) -> GRPOConfig:
    """Returns the GRPOConfig. TRL counts optimizer steps, of which a step here has several."""
    algorithm = settings.algorithm
    own: dict[str, Any] = settings.arguments()
    at_once = own["per_device_train_batch_size"] * PartialState().num_processes
    update = algorithm.prompts_per_update * algorithm.rollouts_per_prompt
    if update % at_once:
        raise BadSettings(
            f"an update of {update} rollouts cannot be divided by {at_once}, which all processes "
            "take together",
            hint="change algorithm.rollouts_per_device, or the number of processes",
        )
    return GRPOConfig(
        max_steps=settings.steps * algorithm.updates_per_step,
        save_steps=settings.save_every_steps * algorithm.updates_per_step,
        gradient_accumulation_steps=update // at_once,
        generation_batch_size=update * algorithm.updates_per_step,
        **own,
    )


def check(settings: Training) -> None:
    """Raises `BadSettings` for arguments that GRPOConfig does not have."""
    known = [field.name for field in fields(GRPOConfig) if field.init]
    unknown = [name for name in settings.arguments() if name not in known]
    if unknown:
        raise BadSettings(
            f"GRPOConfig has no {', '.join(unknown)} (trainer.arguments)",
            hint=" ".join(nearest(name, known) for name in unknown),
        )


def newest_checkpoint(directory: Path) -> str | None:
    """Returns the newest checkpoint that is complete: the trainer's state is written last."""
    found = (
        str(path.parent)
        for path in directory.glob(f"{PREFIX_CHECKPOINT_DIR}-*/trainer_state.json")
        if re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-\d+", path.parent.name) and _is_whole(path)
    )
    return max(found, key=step_of, default=None)


def _restore(trainer: GRPOTrainer, checkpoint: str, *, has_adapters: bool) -> None:
    """Loads a checkpoint's weights. transformers leaves out, with a warning, those that have other
    names in files than in memory: most of a model that sees."""
    if has_adapters:
        trainer._load_from_checkpoint(checkpoint)
    else:
        saved = type(trainer.model).from_pretrained(checkpoint, dtype=trainer.model.dtype)
        trainer.model.load_state_dict(saved.state_dict())


def step_of(checkpoint: str) -> int:
    """Returns the number of optimizer steps before a checkpoint."""
    return int(checkpoint.rpartition("-")[2])


def _is_whole(state: Path) -> bool:
    try:
        TrainerState.load_from_json(str(state))
    except ValueError:
        return False
    return True


class _ShowProgress(TrainerCallback):  # type: ignore[misc]
    """Callback that logs a line per step: at its first update, whose rollouts were just made."""

    def __init__(self, settings: Training) -> None:
        self._updates_per_step = settings.algorithm.updates_per_step
        self._progress = Progress(
            settings.output / "progress.jsonl", success=settings.agent.success, steps=settings.steps
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        updates = self._updates_per_step
        if (
            state.is_world_process_zero
            and "reward" in logs
            and state.global_step % updates == 1 % updates
        ):
            step = (state.global_step - 1) // updates + 1
            self._progress.log(step, logs, trained_on="reward")
