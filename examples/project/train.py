"""GRPO with TRL's stock trainer. The rollouts are the service's: `spec` is all that is ours.

python train.py MODEL    # the one that the service's engine serves
"""

import json
import os
import sys
from pathlib import Path
from statistics import fmean

import torch
from trl import GRPOConfig, GRPOTrainer

from prorl_service.schemas import Limits, Task
from prorl_trl import ProRLSpec

STEPS = 60
URL = os.environ.get("PRORL_URL", "http://localhost:8080")


def tasks() -> list[Task]:
    rows = [json.loads(line) for line in Path("tasks.jsonl").read_text().splitlines()]
    return [
        Task.model_validate({name: one for name, one in row.items() if name != "solution"})
        for row in rows
    ]


def main(model: str) -> None:
    spec = ProRLSpec(URL, tasks(), limits=Limits(max_turns=3), overlong="keep")
    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(
            output_dir="trained",
            max_steps=STEPS,
            per_device_train_batch_size=64,
            num_generations=8,
            max_completion_length=96,
            learning_rate=3e-3,  # for a pretrained model 1e-6
            vllm_importance_sampling_mode="token_truncate",
            bf16=torch.cuda.is_available(),
            gradient_checkpointing=torch.cuda.is_available(),
            logging_steps=1,
            report_to="none",
        ),
        train_dataset=spec.train_dataset,
        rollout_func=spec.rollout_func,
        reward_funcs=spec.reward_funcs,
    )
    trainer.train()
    trainer.save_model()
    rewards = [one["reward"] for one in trainer.state.log_history if "reward" in one]
    print(f"success: {fmean(rewards[:5]):.2f} at first, {fmean(rewards[-5:]):.2f} at last")


if __name__ == "__main__":
    main(sys.argv[1])
