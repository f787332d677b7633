"""Rows of tokens for offline training: one for each segment, as the engine saw and sampled it."""

from collections.abc import Iterator
from typing import Any

from prorl_service.exports.record import Record
from prorl_service.schemas import NOT_SAMPLED, Sampling

Row = dict[str, Any]

IGNORED = -100
"""Label of a token that is not trained on, as trainers have it."""

COLUMNS = {
    "input_ids": "list<int>",
    "labels": "list<int>",
    "loss_mask": "list<mask>",
    "logprobs": "list<logprob>",
    "policy_versions": "list<int>",
    "prompt_length": "int",
    "reward": "float",
    "group_id": "text",
    "rollout_id": "text",
    "index": "int",
    "segment": "int",
    "segments": "int",
    "task_id": "text",
    "agent": "text",
    "finish_reason": "text",
    "exact": "bool",
}
"""Types of the columns in Parquet."""


def rows(record: Record) -> Iterator[Row]:
    """Yields a row a segment. Lists have the length of `input_ids`, prompt included; `labels` are
    the ids that the policy sampled. `exact` says that the logprobs' distribution was not truncated,
    so that importance ratios with them are exact."""
    rollout = record.rollout
    if rollout.trajectory is None:
        return
    segments = rollout.trajectory.segments
    for number, segment in enumerate(segments):
        before = len(segment.prompt_ids)
        ids = segment.prompt_ids + segment.response_ids
        mask = [0] * before + segment.loss_mask
        yield {
            "input_ids": ids,
            "labels": [id_ if kept else IGNORED for id_, kept in zip(ids, mask, strict=True)],
            "loss_mask": mask,
            "logprobs": [0.0] * before + segment.logprobs,
            "policy_versions": [NOT_SAMPLED] * before + segment.policy_versions,
            "prompt_length": before,
            "reward": rollout.reward,
            "group_id": rollout.group_id,
            "rollout_id": rollout.rollout_id,
            "index": rollout.index,
            "segment": number,
            "segments": len(segments),
            "task_id": rollout.task_id,
            "agent": rollout.agent,
            "finish_reason": rollout.trajectory.finish_reason.value,
            "exact": _is_uncut(rollout.trajectory.sampling),
        }


def _is_uncut(sampling: Sampling) -> bool:
    return sampling.temperature > 0 and sampling.top_p == 1 and sampling.top_k == 0
