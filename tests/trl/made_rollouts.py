"""Rollouts of a training step made by a test, failed ones of every kind among them."""

import random
from pathlib import Path
from typing import Any

from prorl_service.client.saved import SavedStep
from prorl_service.schemas import Blame, ErrorInfo, Rollout, RolloutState
from tests import builders

FAILURES = [*(blame.value for blame in Blame), "cancelled", "no reward", "two segments", "no token"]
"""Ways in which a rollout cannot be trained on."""


def rollout(
    task: int, index: int, reward: float, failure: str | None = None, *, last_id: int
) -> Rollout:
    """Returns a rollout of task `count-{task}`, whose tokens depend on `task` and `index`."""
    count = 2 if failure == "two segments" else 1
    seed, is_sampled = 100 * task + index, failure != "no token"
    ids = [*random.Random(seed).sample(range(10, 200), 4), last_id]
    segment = builders.segment(
        [int(is_sampled)] * 5, version=0, response_ids=ids, logprobs=[-5.0 * is_sampled] * 5
    )
    fields: dict[str, Any] = {"reward": None if failure == "no reward" else reward}
    if failure == "cancelled":
        fields["state"] = RolloutState.CANCELLED
    elif failure in {blame.value for blame in Blame}:
        error = ErrorInfo(kind="Broken", blame=Blame(failure), message="it broke")
        fields |= {"state": RolloutState.FAILED, "error": error}
    fields |= {"task_id": f"count-{task}", "agent": "letters"}
    return builders.rollout(f"made-{task}.{index}", *[segment] * count, turns=1, **fields)


def save(directory: Path, rollouts: list[Rollout], step: int = 1) -> Path:
    """Writes rollouts as `ProRLRollout(save=...)` does; returns `directory`, for `replay`."""
    directory.mkdir(exist_ok=True)
    lines = "".join(one.model_dump_json() + "\n" for one in rollouts)
    (directory / SavedStep(step).file_name).write_text(lines)
    return directory
