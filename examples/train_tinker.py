"""GRPO on Tinker's API: LoRA on a Tinker server, rollouts in the service.

prorl serve
TINKER_BASE_URL=http://localhost:8000 TINKER_API_KEY=tml-... python examples/train_tinker.py MODEL
"""

import os
import sys

import tinker

from prorl_service.schemas import Limits, Message, Task
from prorl_tinker import TinkerRollouts, lora_training_client

STEPS = int(os.environ.get("STEPS", "20"))
ADAM = tinker.AdamParams(learning_rate=1e-4)


def task(a: int, b: int) -> Task:
    return Task(
        task_id=f"sum-{a}-{b}",
        agent="math",
        messages=[Message(role="user", content=f"What is {a} plus {b}?")],
        data={"answer": str(a + b)},
    )


def main(model: str) -> None:
    client = lora_training_client(tinker.ServiceClient(), base_model=model, rank=16)
    url = os.environ.get("PRORL_URL", "http://localhost:8080")
    tasks = [task(a, b) for a in range(10, 40, 3) for b in range(50, 90, 7)]
    with TinkerRollouts(url, client, tasks, limits=Limits(max_response_tokens=512)) as rollouts:
        for number in range(1, STEPS + 1):
            step = rollouts.step()
            if not step.data:
                continue
            future = client.forward_backward(step.data, "importance_sampling")
            update = client.optim_step(ADAM)
            metrics = rollouts.check(step.data, future)
            update.result()
            print(f"step {number}: reward {metrics['prorl/reward']:.2f}, {len(step.data)} data")
        rollouts.push_weights()  # the service now has the final policy
    print(client.save_state("final").result().path)


if __name__ == "__main__":
    main(sys.argv[1])
