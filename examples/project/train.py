"""GRPO with TRL's stock trainer. The rollouts are the service's: `spec` is all that is ours.

python train.py MODEL    # the one that the service's engine serves
"""

import json
import os
import sys
from pathlib import Path

import torch
from trl import GRPOConfig, GRPOTrainer

from prorl_service.schemas import Limits, Task
from prorl_trl import ProRLSpec

STEPS = 50
URL = os.environ.get("PRORL_URL", "http://localhost:8080")


def read_tasks() -> list[Task]:
    rows = [json.loads(line) for line in Path("tasks.jsonl").read_text().splitlines()]
    return [
        Task.model_validate({name: one for name, one in row.items() if name != "solution"})
        for row in rows
    ]


def main(model: str) -> None:
    tasks = read_tasks()
    spec = ProRLSpec(URL, tasks, tasks, limits=Limits(max_turns=3), overlong="keep")
    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(
            output_dir="trained",
            max_steps=2 * STEPS,
            num_iterations=2,  # the rollouts of a step are learned from twice
            per_device_train_batch_size=64,
            num_generations=8,
            per_device_eval_batch_size=64,
            num_generations_eval=8,
            max_completion_length=96,
            learning_rate=1e-3,  # for a pretrained model 1e-6
            warmup_steps=6,
            vllm_importance_sampling_mode="token_truncate",
            bf16=torch.cuda.is_available(),
            gradient_checkpointing=torch.cuda.is_available(),
            logging_steps=2,
            report_to="none",
        ),
        train_dataset=spec.train_dataset,
        eval_dataset=spec.eval_dataset,
        rollout_func=spec.rollout_func,
        reward_funcs=spec.reward_funcs,
    )
    before = trainer.evaluate()["eval_reward"]
    trainer.train()
    trainer.save_model()
    after = trainer.evaluate()["eval_reward"]
    print(f"mean reward on all tasks: {before:.2f} before training, {after:.2f} after it")


if __name__ == "__main__":
    main(sys.argv[1])
