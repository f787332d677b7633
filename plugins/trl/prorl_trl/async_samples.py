"""Conversion of a group's ended rollouts to samples of AsyncGRPOTrainer. Pure, without TRL.

That trainer takes samples with their advantages. They are computed as in TRL's own worker, over the
rollouts of a group that have a reward. A rollout of several segments gives several samples, all
with its advantage; failed rollouts and groups whose rewards are all equal give none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from prorl_service.client.metrics import metrics, oldest_version
from prorl_service.client.trainable import (
    Overlong,
    advantages,
    is_informative,
    refuse_pictures,
    trained_segments,
)
from prorl_service.schemas import Rollout, Segment, Trajectory
from prorl_trl.convert import TrlRow, row_of


@dataclass(frozen=True, slots=True)
class RowAttempt:
    """A rollout as rows: `whole` has its reward, and `trained` has the rows to learn from."""

    whole: TrlRow
    trained: list[TrlRow]
    completion: list[dict[str, str]]


def attempt_of(
    rollout: Rollout, *, overlong: Overlong, versions: Mapping[int, int] | None = None
) -> RowAttempt:
    """`versions`: the trainer's number of each version of its weights, keyed by the service's; a
    rollout of other weights has failed. None: both count alike. Raises `InvalidRequest` for
    pictures."""
    refuse_pictures(rollout)
    trajectory = rollout.trajectory
    whole = row_of(rollout, eos_id=0, segments="longest", overlong=overlong, versions=versions)
    is_trained = whole.failure is None and any(whole.env_mask)
    trained = [_row(whole, one) for one in trained_segments(rollout)] if is_trained else []
    return RowAttempt(
        whole=_numbered(whole, versions),
        trained=[_numbered(one, versions) for one in trained],
        completion=_completion(trajectory) if trajectory else [],
    )


def _numbered(row: TrlRow, versions: Mapping[int, int] | None) -> TrlRow:
    """Returns the row with the trainer's number of its version, if it has any."""
    if versions is None or row.policy_version not in versions:
        return row
    return replace(row, policy_version=versions[row.policy_version])


def _row(whole: TrlRow, segment: Segment) -> TrlRow:
    return replace(
        whole,
        prompt_ids=segment.prompt_ids,
        completion_ids=segment.response_ids,
        logprobs=segment.logprobs,
        env_mask=segment.loss_mask,
        policy_version=oldest_version(segment),
    )


def _completion(trajectory: Trajectory) -> list[dict[str, str]]:
    """Returns messages for people who look at traces; they are not trained on."""
    messages = []
    for turn in trajectory.turns:
        messages.append({"role": "assistant", "content": turn.text})
        messages += [{"role": "tool", "content": call.output} for call in turn.tool_calls]
    return messages


def samples_of(
    attempts: Sequence[RowAttempt], *, group_id: int, prompt: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the fields of TRL's `RolloutSample`s; none for a group that teaches nothing."""
    rewards = [attempt.whole.reward for attempt in attempts]
    if not is_informative(rewards):
        return []
    reward_std = pstdev(reward for reward in rewards if reward is not None)
    return [
        {
            **_arrays(row),
            "prompt": list(prompt),
            "completion": attempt.completion,
            "advantage": advantage,
            "model_version": row.policy_version,
            "group_id": group_id,
            "metrics": {"reward": row.reward, "reward_std": reward_std},
        }
        for attempt, advantage in zip(attempts, advantages(rewards), strict=True)
        for row in attempt.trained
    ]


def _arrays(row: TrlRow) -> dict[str, Any]:
    """Returns arrays over the whole sequence, with the prompt masked."""
    before = len(row.prompt_ids)
    return {
        "input_ids": np.array([*row.prompt_ids, *row.completion_ids], np.int64),
        "completion_mask": np.array([0] * before + row.env_mask, np.int64),
        "old_log_probs": np.array([0.0] * before + row.logprobs, np.float32),
    }


def group_metrics(attempts: Sequence[RowAttempt], version: int) -> dict[str, float]:
    """Returns metrics of all rollouts of a group; `version` is that of the newest weights.

    AsyncGRPOTrainer sums metrics that are called a total.
    """
    rows = [attempt.whole for attempt in attempts]
    rewards = [row.reward for row in rows if row.reward is not None]
    values = metrics(rows, version)
    values["prorl/sampling/failed_total"] = float(not rewards)
    values["prorl/sampling/uninformative_total"] = float(
        bool(rewards) and not is_informative(rewards)
    )
    if rewards:
        values["prorl/samples_per_rollout"] = fmean(len(attempt.trained) for attempt in attempts)
    return values
