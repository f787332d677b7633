"""Builders of tasks, rollouts and answers of a service, most of them for tests that start none."""

from collections.abc import Sequence
from typing import Any

from prorl_service import __version__
from prorl_service.schemas import (
    NOT_SAMPLED,
    BackendState,
    BackendStatus,
    FinishReason,
    Rollout,
    RolloutState,
    Sampling,
    Segment,
    ServiceStatus,
    Task,
    Trajectory,
    Turn,
)


def task(task_id: str = "t", text: str = "1 + 2", **fields: Any) -> Task:
    given = {"task_id": task_id, "agent": "math", "messages": [{"role": "user", "content": text}]}
    return Task.model_validate(given | fields)


def segment(mask: Sequence[int] = (1, 0, 1), version: int = 5, **fields: Any) -> Segment:
    """Returns a segment of the prompt [7, 8]; its response counts from 10."""
    given = {
        "prompt_ids": [7, 8],
        "response_ids": [*range(10, 10 + len(mask))],
        "loss_mask": [*mask],
        "logprobs": [-0.5 * one for one in mask],
        "policy_versions": [version if one else NOT_SAMPLED for one in mask],
    }
    return Segment(**(given | fields))


def turn(segment: int = 0, start: int = 0, stop: int = 1, **fields: Any) -> Turn:
    given = {"text": "3", "finish_reason": "stop", "model_s": 0, "backend": "b"}
    return Turn(segment=segment, start=start, stop=stop, **(given | fields))


def rollout(
    rollout_id: str = "r.0",
    *segments: Segment,
    turns: int = 0,
    text: str = "3",
    finish_reason: FinishReason = FinishReason.FINISHED,
    **fields: Any,
) -> Rollout:
    """Returns a rollout that is done, with a trajectory if it has `segments`, the last of which
    has `turns`. `fields`: others, which may replace these."""
    group_id, _, index = rollout_id.rpartition(".")
    trajectory = Trajectory(
        segments=[*segments],
        turns=[turn(len(segments) - 1, text=text)] * turns,
        finish_reason=finish_reason,
        sampling=Sampling(),
    )
    given: dict[str, Any] = {
        "rollout_id": rollout_id,
        "group_id": group_id,
        "task_id": "t",
        "agent": "math",
        "index": int(index),
        "state": RolloutState.DONE,
        "created_at": 0.0,
    }
    if segments:
        given |= {"reward": 1.0, "trajectory": trajectory}
    return Rollout(**(given | fields))


def backend(state: BackendState = BackendState.HEALTHY, **fields: Any) -> BackendStatus:
    given = {"backend_id": "e:1", "url": "http://e:1", "model": "m", "policy_version": 0}
    return BackendStatus.model_validate(
        given | {"state": state, "max_model_len": 64, "in_flight": 0} | fields
    )


def status(**fields: Any) -> ServiceStatus:
    given = {
        "version": __version__,
        "run": "run",
        "is_stopping": False,
        "policy_version": 0,
        "sandbox": "none",
        "agents": [],
        "rollouts": {},
        "queues": {},
        "workers": {},
        "backends": [],
    }
    return ServiceStatus.model_validate(given | fields)
