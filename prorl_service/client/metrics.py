"""Metrics of rollouts for trainers to log, under the same names in every trainer.

Pure. `trainable` says which rollouts can be trained on.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Any

from prorl_service.client.trainable import component_means, failure_of
from prorl_service.schemas import NOT_SAMPLED, Blame, ErrorInfo, FinishReason, Rollout, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`failure` says why there is nothing to learn from a rollout; the other fields are then unset.

    `policy_version` is the oldest that sampled a token. `seconds` count work only, without time in
    queues and waits of the stages.
    """

    reward: float | None = None
    reward_components: dict[str, float] = field(default_factory=dict)
    turns: int = 0
    finish_reason: str = FinishReason.ERROR.value
    policy_version: int = NOT_SAMPLED
    seconds: float = 0.0
    queued_s: float = 0.0
    failure: ErrorInfo | None = None

    def as_fields(self) -> dict[str, Any]:
        """Returns its fields by name, for a class that extends it."""
        return {one.name: getattr(self, one.name) for one in fields(Outcome)}


def outcome_of(rollout: Rollout) -> Outcome:
    failure = failure_of(rollout)
    if failure is not None:
        return Outcome(failure=failure)
    assert rollout.trajectory is not None
    timings = rollout.timings
    return Outcome(
        reward=rollout.reward,
        reward_components=rollout.reward_components,
        turns=len(rollout.trajectory.turns),
        finish_reason=rollout.trajectory.finish_reason.value,
        policy_version=min(map(oldest_version, _sampled(rollout.trajectory.segments))),
        seconds=timings.init_s + timings.run_s + timings.eval_s - timings.waited_s,
        queued_s=timings.queue_s,
    )


def _sampled(segments: Sequence[Segment]) -> Iterator[Segment]:
    return (segment for segment in segments if any(segment.loss_mask))


def oldest_version(segment: Segment) -> int:
    versions = set(segment.policy_versions) - {NOT_SAMPLED}
    return min(versions, default=NOT_SAMPLED)


def metrics(outcomes: Sequence[Outcome], newest_version: int | None) -> dict[str, float]:
    """Returns metrics by name. Failures do not count towards rewards, turns, seconds and lag.

    Shares are of all outcomes. `newest_version`: version of the weights that the rollouts should
    have been sampled with, if that is known.
    """
    blamed = Counter(one.failure.blame for one in outcomes if one.failure)
    usable = [one for one in outcomes if one.failure is None]
    values = {"prorl/failed": 1 - len(usable) / len(outcomes)}
    values |= {f"prorl/failed/{blame.value}": blamed[blame] / len(outcomes) for blame in Blame}
    if not usable:
        return values
    finished = FinishReason.FINISHED.value
    values |= {
        "prorl/overlong": sum(one.finish_reason != finished for one in usable) / len(outcomes),
        "prorl/turns": fmean(one.turns for one in usable),
        "prorl/rollout_s": fmean(one.seconds for one in usable),
        "prorl/rollout_max_s": max(one.seconds for one in usable),
        "prorl/queued_s": fmean(one.queued_s for one in usable),
    }
    values |= component_means(one.reward_components for one in usable)
    rewards = [one.reward for one in usable if one.reward is not None]
    if rewards:
        values["prorl/reward"] = fmean(rewards)
    if newest_version is not None:
        values["prorl/policy_lag"] = newest_version - min(one.policy_version for one in usable)
    return values
