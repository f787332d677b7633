"""Tasks, and steps of a training on Tinker's API."""

from pathlib import Path
from typing import Any

import tinker
from tinker import types

from prorl_service.schemas import Limits, Sampling, Task
from prorl_tinker import TinkerRollouts, lora_training_client
from prorl_tinker.rollouts import StepData
from tests import builders

AGENTS = [f"tests.trl.letters:{name}Agent" for name in ("Letters", "Forgetful", "Hasty")]
SERVICE_OPTIONS = ["--sandbox", "process", *(f"--agent={agent}" for agent in AGENTS)]
SMALL: dict[str, Any] = {
    "groups_per_step": 2,
    "group_size": 4,
    "limits": Limits(max_response_tokens=40),
    "sampling": Sampling(max_tokens_per_turn=8),
    "overlong": "keep",
    "max_model_len": 512,
}
EXACT = 1e-5
"""Largest difference in nats between a sampled logprob and that of `forward_backward`."""


def tasks(count: int = 4, agent: str = "letters", **data: Any) -> list[Task]:
    return [builders.task(f"{agent}-{number}", agent=agent, data=data) for number in range(count)]


def rollouts(url: str, training_client: tinker.TrainingClient, **options: Any) -> TinkerRollouts:
    given = {"tasks": tasks(), **SMALL, **options}
    return TinkerRollouts(url, training_client, given.pop("tasks"), **given)


def update(
    own: TinkerRollouts, client: tinker.TrainingClient, step: StepData, rate: float = 1e-2
) -> dict[str, float]:
    """Trains on a step. Returns its metrics."""
    future = client.forward_backward(step.data, "importance_sampling")
    update = client.optim_step(types.AdamParams(learning_rate=rate))
    values = own.check(step.data, future)
    update.result()
    return values


def versions(step: StepData) -> set[int]:
    """Returns the versions of all sampled tokens."""
    trajectories = [one.trajectory for group in step.groups for one in group if one.trajectory]
    segments = [segment for one in trajectories for segment in one.segments]
    return {
        version
        for one in segments
        for version, mask in zip(one.policy_versions, one.loss_mask, strict=True)
        if mask
    }


def new_client(service: tinker.ServiceClient, policy: Path) -> tinker.TrainingClient:
    return lora_training_client(service, base_model=str(policy), rank=8)
