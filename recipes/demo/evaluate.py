"""Success on tasks that training never sees, measured through the service, as in training."""

from collections.abc import Sequence

from tqdm.auto import tqdm

from prorl_service.client import RolloutClient
from prorl_service.schemas import Group, Limits, Rollout, Sampling, Task

TIMEOUT_S = 3600


def evaluate(
    client: RolloutClient, tasks: Sequence[Task], *, name: str, n: int, limits: Limits
) -> list[Rollout]:
    """Runs `n` rollouts of each task at temperature 1. Raises `RuntimeError` if one fails."""
    groups = [
        Group(group_id=f"{name}-{task.task_id}", task=task, n=n, limits=limits, sampling=Sampling())
        for task in tasks
    ]
    client.submit(groups)
    ids = [rollout_id for group in groups for rollout_id in group.rollout_ids()]
    ended: dict[str, Rollout] = {}
    for rollout in tqdm(client.stream(ids, TIMEOUT_S), f"{name} training", len(ids), leave=False):
        if rollout.error is not None:
            raise RuntimeError(f"{rollout.rollout_id} failed: {rollout.error.message}")
        ended[rollout.rollout_id] = rollout
    return [ended[rollout_id] for rollout_id in ids]


def success(rollouts: Sequence[Rollout]) -> float:
    return sum(rollout.reward_components["correct"] for rollout in rollouts) / len(rollouts)


def sampled_tokens(rollouts: Sequence[Rollout]) -> int:
    return sum(one.figures.sampled_tokens for one in rollouts if one.figures is not None)
