"""Conversion of groups of rollouts to Tinker's `Datum`s: pure, without I/O.

A rollout gives a datum for each segment that is trained on, all with its advantage; none if it
failed, was cut off under `overlong="mask"`, or is of a group of one reward.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tinker import types

from prorl_service.client.trainable import (
    Overlong,
    advantages,
    failure_of,
    is_cut_off,
    refuse_pictures,
    shaped_reward,
    trained_segments,
)
from prorl_service.schemas import NOT_SAMPLED, Rollout, Segment


@dataclass(frozen=True, slots=True)
class Sample:
    """A segment as Tinker trains on it. Lists are as long as the datum's targets, N - 1 for a
    sequence of N tokens; `versions` are those of the sampled tokens."""

    datum: types.Datum
    mask: list[int]
    logprobs: list[float]
    versions: set[int]

    def gaps(self, trainers: Sequence[float]) -> list[float]:
        """Returns |the trainer's logprob - the sampled one| of each sampled token, in nats."""
        columns = zip(self.mask, self.logprobs, trainers, strict=True)
        return [abs(theirs - own) for mask, own, theirs in columns if mask]


def samples_of(group: Sequence[Rollout], overlong: Overlong) -> list[Sample]:
    """Returns the samples of a group; none if it teaches nothing. Raises `InvalidRequest` for
    pictures."""
    for rollout in group:
        refuse_pictures(rollout)
    rewards = [None if failure_of(one) else shaped_reward(one, overlong) for one in group]
    return [
        _sample(segment, advantage)
        for rollout, advantage in zip(group, advantages(rewards), strict=True)
        if advantage and rollout.trajectory is not None
        if overlong != "mask" or not is_cut_off(rollout.trajectory)
        for segment in trained_segments(rollout)
    ]


def _sample(segment: Segment, advantage: float) -> Sample:
    """Inputs are all tokens but the last, targets all but the first; what the policy did not sample
    has logprob and advantage 0, and thus no part in Tinker's losses."""
    ids = [*segment.prompt_ids, *segment.response_ids]
    before = len(segment.prompt_ids) - 1
    mask = [0] * before + segment.loss_mask
    logprobs = [0.0] * before + segment.logprobs
    columns = {
        "target_tokens": ids[1:],
        "logprobs": logprobs,
        "advantages": [advantage * one for one in mask],
    }
    datum = types.Datum(types.ModelInput.from_ints(ids[:-1]), columns)
    return Sample(datum, mask, logprobs, set(segment.policy_versions) - {NOT_SAMPLED})
