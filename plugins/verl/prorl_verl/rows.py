"""Conversion of a rollout to the rows that VeRL trains on. Pure: imports no VeRL, no torch.

A session (one rollout) has a row for each segment that is trained on, the main one last: the others
get its advantage, too. A rollout that cannot be trained on has none; it is never replaced by a copy
of a sibling and never given a made-up reward.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from prorl_service.client.trainable import (
    SoftPunishment,
    failure_of,
    is_cut_off,
    trained_segments,
    turn_rewards,
)
from prorl_service.schemas import NOT_SAMPLED, Rollout, Segment


@dataclass(frozen=True, slots=True)
class Row:
    """One segment, unpadded. All lists except `prompt_ids` are as long as `response_ids`.

    response_mask: 1 where the policy sampled. logprobs: nats, 0.0 where masked. reward: of the
    whole rollout, shaped. turn_rewards: parts of it, by place in `response_ids`, some beyond its
    end. Versions: of the sampled tokens. metrics: the same keys in every row.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    logprobs: list[float]
    reward: float
    turn_rewards: dict[int, float]
    turns: int
    min_version: int
    max_version: int
    metrics: dict[str, Any]
    verl_fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of VeRL's: pictures, and what a teacher makes of the row."""


def rows_of(
    rollout: Rollout, *, max_response_tokens: int, overlong: SoftPunishment | None = None
) -> list[Row]:
    """Returns no rows if there is nothing to train on; `failure_of` says why."""
    if failure_of(rollout) is not None:
        return []
    assert rollout.trajectory is not None
    assert rollout.reward is not None
    penalty = overlong.of(rollout.trajectory) if overlong else 0.0
    metrics = {
        "acc": rollout.reward,
        "overlong_penalty": penalty,
        "cut_off": float(is_cut_off(rollout.trajectory)),
    }
    return [
        Row(
            prompt_ids=segment.prompt_ids,
            response_ids=segment.response_ids[:max_response_tokens],
            response_mask=segment.loss_mask[:max_response_tokens],
            logprobs=segment.logprobs[:max_response_tokens],
            reward=rollout.reward + penalty,
            turn_rewards=turn_rewards(rollout.trajectory, segment),
            turns=len(rollout.trajectory.turns),
            min_version=min(_versions(segment)),
            max_version=max(_versions(segment)),
            metrics=metrics,
        )
        for segment in trained_segments(rollout)
        if any(segment.loss_mask[:max_response_tokens])
    ]


def _versions(segment: Segment) -> Iterator[int]:
    return (version for version in segment.policy_versions if version != NOT_SAMPLED)
