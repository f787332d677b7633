"""Rows of tokens for offline training: one for each segment, as the engine saw and sampled it."""

from collections.abc import Iterator
from typing import Any

from prorl_service.client.trainable import token_rewards, trained_masks, turn_rewards
from prorl_service.exports.transcript import ExportRecord
from prorl_service.schemas import NOT_SAMPLED, Rollout, Sampling, Segment, Trajectory
from prorl_service.schemas.pictures import shown

Row = dict[str, Any]

IGNORED = -100
"""Label of a token that is not trained on, as trainers have it."""

COLUMNS = {
    "input_ids": "list<int>",
    "labels": "list<int>",
    "loss_mask": "list<mask>",
    "is_abandoned": "list<mask>",
    "token_rewards": "list<float>",
    "logprobs": "list<logprob>",
    "policy_versions": "list<int>",
    "prompt_length": "int",
    "reward": "float",
    "group_id": "text",
    "rollout_id": "text",
    "index": "int",
    "segment": "int",
    "segments": "int",
    "kind": "text",
    "is_trained": "bool",
    "task_id": "text",
    "agent": "text",
    "finish_reason": "text",
    "exact": "bool",
}
"""Types of the columns in Parquet."""


def rows(record: ExportRecord, *, all_segments: bool = False) -> Iterator[Row]:
    """Yields a row a segment. Lists have the length of `input_ids`, prompt included; `labels` are
    the sampled ids that trainers learn from (`trained_masks`), or all of them with `all_segments`.
    `is_trained` says whether the row has any. `exact` says that the logprobs' distribution was not
    truncated, so that importance ratios with them are exact. `token_rewards` sum to `reward`. Text
    of a model behind an API gives no rows, nor do segments with pictures: their tokens are of no
    vocabulary, and trainers take no pixels beside `input_ids`."""
    rollout = record.rollout
    if rollout.trajectory is None or rollout.trajectory.policy is not None:
        return
    segments, trained = rollout.trajectory.segments, trained_masks(rollout)
    for number, segment in enumerate(segments):
        before = len(segment.prompt_ids)
        ids = segment.prompt_ids + segment.response_ids
        if any(shown(ids)):
            continue
        mask = [0] * before + (segment.loss_mask if all_segments else trained[number])
        yield {
            "input_ids": ids,
            "labels": [id_ if kept else IGNORED for id_, kept in zip(ids, mask, strict=True)],
            "loss_mask": mask,
            "is_abandoned": [0] * before + _abandoned(rollout.trajectory, number),
            "token_rewards": [0.0] * before + _token_rewards(rollout, segment),
            "logprobs": [0.0] * before + segment.logprobs,
            "policy_versions": [NOT_SAMPLED] * before + segment.policy_versions,
            "prompt_length": before,
            "reward": rollout.reward,
            "group_id": rollout.group_id,
            "rollout_id": rollout.rollout_id,
            "index": rollout.index,
            "segment": number,
            "segments": len(segments),
            "kind": segment.kind,
            "is_trained": any(trained[number]),
            "task_id": rollout.task_id,
            "agent": rollout.agent,
            "finish_reason": rollout.trajectory.finish_reason.value,
            "exact": _is_uncut(rollout.trajectory.sampling),
        }


def _token_rewards(rollout: Rollout, segment: Segment) -> list[float]:
    """Returns the reward and the turns' parts of it by token; zeros without a reward."""
    assert rollout.trajectory is not None
    of_turns = turn_rewards(rollout.trajectory, segment)
    return token_rewards(rollout.reward or 0.0, of_turns, segment.loss_mask)


def _abandoned(trajectory: Trajectory, segment: int) -> list[int]:
    """Returns 1 for each token of a turn that the agent's program asked for again."""
    mask = [0] * len(trajectory.segments[segment].response_ids)
    for turn in trajectory.turns:
        if turn.segment == segment and turn.is_abandoned:
            mask[turn.start : turn.stop] = [1] * (turn.stop - turn.start)
    return mask


def _is_uncut(sampling: Sampling) -> bool:
    return sampling.temperature > 0 and sampling.top_p == 1 and sampling.top_k == 0
