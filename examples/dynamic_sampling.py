"""Dynamic sampling without a trainer: two draws of two informative groups of four.

prorl serve --backend http://localhost:8000
python examples/dynamic_sampling.py
"""

import os
from itertools import count

from prorl_service.client import RolloutClient
from prorl_service.client.sampling import SamplerClient
from prorl_service.schemas import Group, Message, Task
from prorl_service.schemas.sampling import DrawSpec, SamplerSpec

SAMPLER = f"example-{os.getpid()}"


def task(number: int) -> Task:
    question = f"What is {number} times {number + 1}?"
    return Task(
        task_id=f"t{number}",
        agent="math",
        messages=[Message(role="user", content=question)],
        data={"answer": str(number * (number + 1))},
    )


def main() -> None:
    candidates = (Group(group_id=f"c{i}", task=task(i), n=4) for i in count(10))
    with (
        RolloutClient(os.environ.get("PRORL_URL", "http://localhost:8080")) as client,
        SamplerClient(client, SAMPLER, SamplerSpec(), candidates) as sampler,
    ):
        for step in range(2):
            draw, groups = sampler.draw(f"step-{step}", DrawSpec(target=2, deadline_s=600))
            print(f"step {step}: {draw.state}, {draw.finished} groups ended")
            for rollouts in groups:
                print(f"  {rollouts[0].task_id}: {[one.reward for one in rollouts]}")


if __name__ == "__main__":
    main()
