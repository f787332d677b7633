"""GRPO with TRL's stock trainer: the rollouts are the service's.

prorl engine --model MODEL                       # or vLLM, with the options of docs/engines.md
prorl serve --backend http://localhost:8000
python examples/train_trl.py MODEL               # a directory, or a name on the hub
"""

import os
import sys

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from prorl_service.schemas import Limits
from prorl_trl import ProRLRollout, with_task

TASKS = [
    with_task(
        [{"role": "user", "content": f"What is {number} times 3?"}],
        task_id=f"t{number}",
        agent="math",
        data={"answer": str(3 * number)},
    )
    for number in range(10, 18)
]


def main(model: str) -> None:
    url = os.environ.get("PRORL_URL", "http://localhost:8080")
    rollouts = ProRLRollout(url, limits=Limits(max_turns=4))
    config = GRPOConfig(
        output_dir="outputs/train_trl",
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=256,
        max_steps=2,
        logging_steps=1,
        report_to="none",
        bf16=torch.cuda.is_available(),
    )
    trainer = GRPOTrainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in TASKS]),
        rollout_func=rollouts,
        reward_funcs=rollouts.reward_funcs,
    )
    trainer.train()


if __name__ == "__main__":
    main(sys.argv[1])
