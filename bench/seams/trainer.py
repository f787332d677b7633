"""The trainer of `never_wrong`, a process of its own: `python -m bench.seams.trainer URL MODEL
DIRECTORY KIND STEPS`.

Continues from its last checkpoint, and appends a line of figures for each step to
DIRECTORY/steps.jsonl.
"""

import json
import sys
from pathlib import Path
from typing import Any

from peft import LoraConfig
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from prorl_service.schemas import Sampling
from prorl_trl import ProRLRollout
from tests.trl.test_scorable import by_hand, length
from tests.trl.training import RecordingTrainer, make_trainer

ROWS = 12


class Recording(ProRLRollout):
    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        self.given = super().__call__(prompts, trainer)
        return self.given


class Figures(TrainerCallback):  # type: ignore[misc]
    """Writes what a step says of itself, once it is logged and its checkpoint is written."""

    def __init__(self, rollouts: Recording, trainer: RecordingTrainer, file: Path) -> None:
        self._rollouts, self._trainer, self._file = rollouts, trainer, file

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        logged = state.log_history[-1]
        given, failed = (
            self._rollouts.given,
            [one is not None for one in self._rollouts.given["prorl_failure"]],
        )
        own = [one if one is not None else float("nan") for one in given["prorl_reward"]]
        table = [[a, b] for a, b in zip(own, length(given["completion_ids"]), strict=True)]
        expected = by_hand(table, failed, {})
        differences = (abs(a - b) for a, b in zip(self._trainer.advantages, expected, strict=True))
        row = {
            "step": state.global_step,
            "failed": sum(failed),
            "logprob_diff_max": logged["sampling/sampling_logp_difference/max"],
            "advantage_diff_max": max(differences),
        }
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")


def main(url: str, model: Path, directory: Path, kind: str, steps: int) -> None:
    sampling = Sampling(max_tokens_per_turn=4)
    rollouts = Recording(url, overlong="keep", sampling=sampling, deadline_s=120)
    lora = LoraConfig(r=4, target_modules="all-linear") if kind == "lora" else None
    trainer = make_trainer(
        rollouts,
        model,
        directory / "output",
        options={
            "max_steps": steps,
            "per_device_train_batch_size": ROWS,
            "save_strategy": "steps",
            "save_steps": 1,
            "num_train_epochs": 99,
            "learning_rate": 1e-3,
        },
        trainer_class=RecordingTrainer,
        functions=[length],
        peft_config=lora,
    )
    trainer.add_callback(Figures(rollouts, trainer, directory / "steps.jsonl"))
    last = (
        get_last_checkpoint(str(directory / "output")) if (directory / "output").exists() else None
    )
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
