"""An unmodified agent program, pi, in the place of our loop; the task's own agent grades.

prorl harnesses install pi
prorl serve --backend http://localhost:8000
python examples/harness.py
"""

import os

from prorl_service.client import RolloutClient
from prorl_service.client.harness import with_harness
from prorl_service.schemas import Group, Message, Task

TASK = Task(
    task_id="6-times-7",
    agent="math",
    messages=[Message(role="user", content="What is 6 * 7? Use your shell.")],
    data={"answer": "42"},
)


def main() -> None:
    group = Group(group_id=f"harness-{os.getpid()}", task=with_harness(TASK, "pi"), n=2)
    with RolloutClient(os.environ.get("PRORL_URL", "http://localhost:8080")) as client:
        client.submit([group])
        for rollout in client.wait(group.rollout_ids(), timeout_s=600):
            print(f"{rollout.rollout_id}: {rollout.state}, reward {rollout.reward}")
            if rollout.trajectory is not None:
                for segment in rollout.trajectory.segments:
                    print(f"  {segment.kind}: {sum(segment.loss_mask)} tokens to train on")


if __name__ == "__main__":
    main()
