"""Rollouts of a training step made by a test, failed ones of every kind among them."""

import random
from pathlib import Path

from prorl_service.client.saved import SavedStep
from prorl_service.schemas import (
    Blame,
    ErrorInfo,
    FinishReason,
    Rollout,
    RolloutState,
    Sampling,
    Segment,
    Timings,
    Trajectory,
    Turn,
)

FAILURES = [*(blame.value for blame in Blame), "cancelled", "no reward", "two segments", "no token"]
"""Ways in which a rollout cannot be trained on."""


def rollout(
    task: int, index: int, reward: float, failure: str | None = None, *, last_id: int
) -> Rollout:
    """Returns a rollout of task `count-{task}`, whose tokens depend on `task` and `index`."""
    count = 2 if failure == "two segments" else 1
    seed, is_sampled = 100 * task + index, failure != "no token"
    segments = [_segment(seed, last_id, sampled=is_sampled) for _ in range(count)]
    turns = [
        Turn(segment=at, start=0, stop=4, text="", finish_reason="stop", model_s=0, backend="b")
        for at in range(count)
    ]
    state, error = RolloutState.DONE, None
    if failure == "cancelled":
        state = RolloutState.CANCELLED
    elif failure in {blame.value for blame in Blame}:
        state = RolloutState.FAILED
        error = ErrorInfo(kind="Broken", blame=Blame(failure), message="it broke")
    return Rollout(
        rollout_id=f"made-{task}.{index}",
        group_id=f"made-{task}",
        task_id=f"count-{task}",
        agent="letters",
        index=index,
        state=state,
        error=error,
        reward=None if failure == "no reward" else reward,
        trajectory=Trajectory(
            segments=segments,
            turns=turns,
            finish_reason=FinishReason.FINISHED,
            sampling=Sampling(),
        ),
        timings=Timings(),
        created_at=0,
    )


def _segment(seed: int, last_id: int, *, sampled: bool) -> Segment:
    ids = [*random.Random(seed).sample(range(10, 200), 4), last_id]
    return Segment(
        prompt_ids=[5, 6, 7],
        response_ids=ids,
        loss_mask=[int(sampled)] * 5,
        logprobs=[-5.0 if sampled else 0.0] * 5,
        policy_versions=[0 if sampled else -1] * 5,
    )


def save(directory: Path, rollouts: list[Rollout], step: int = 1) -> Path:
    """Writes rollouts as `ProRLRollout(save=...)` does; returns `directory`, for `replay`."""
    directory.mkdir(exist_ok=True)
    lines = "".join(one.model_dump_json() + "\n" for one in rollouts)
    (directory / SavedStep(step).file_name).write_text(lines)
    return directory
