"""A Harbor task directory, without Docker: an agent works in its image, its own tests grade.

prorl harbor tasks examples/harbor/word-count -o tasks.jsonl
prorl serve --backend http://localhost:8000
python examples/harbor_task.py tasks.jsonl
"""

import os
import sys
from pathlib import Path

from prorl_service.client import RolloutClient
from prorl_service.schemas import Group, Limits, Task

LIMITS = Limits(max_turns=20, eval_timeout_s=900)


def main(file: Path) -> None:
    tasks = [Task.model_validate_json(line) for line in file.read_text().splitlines()]
    groups = [
        Group(group_id=f"harbor-{os.getpid()}-{number}", task=task, n=4, limits=LIMITS)
        for number, task in enumerate(tasks)
    ]
    with RolloutClient(os.environ.get("PRORL_URL", "http://localhost:8080")) as client:
        client.submit(groups)
        for group in groups:
            ended = client.wait(group.rollout_ids(), timeout_s=3600)
            print(f"{group.task.task_id}: rewards {[one.reward for one in ended]}")
            for error in {one.error.message for one in ended if one.error is not None}:
                print(f"  {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
