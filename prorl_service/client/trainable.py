"""Fitness of rollouts for training, for trainers and exports: which tokens are learnt from, which
rollouts cannot be used and why, mean rewards, penalties of length.

Knows nothing of a trainer's further demands on a trajectory. A rollout that fails here is never
replaced by a copy of a sibling and never given a made-up reward.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean, pstdev
from typing import Literal

from pydantic import ConfigDict

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import (
    NOT_SAMPLED,
    BackendState,
    BackendStatus,
    Blame,
    ErrorInfo,
    FinishReason,
    Rollout,
    RolloutState,
    Segment,
    Trajectory,
)
from prorl_service.schemas.numbers import MAX_SCORE, is_score, mean_of, shown


def failure_of(rollout: Rollout) -> ErrorInfo | None:
    """Returns why a rollout is unusable; None if it is done, with a score and a sampled token."""
    if rollout.error is not None:
        return rollout.error
    if rollout.state is not RolloutState.DONE:
        return ErrorInfo(
            kind="NotFinished",
            blame=Blame.SERVICE,
            message=f"the rollout is {rollout.state.value}",
            hint="raise `deadline_s` if rollouts need longer, or give the service more workers",
            retryable=True,
        )
    if rollout.trajectory is not None and (model := rollout.trajectory.policy) is not None:
        return ErrorInfo(
            kind="NotSampledExactly",
            blame=Blame.SERVICE,
            message=f"it is text of {model}, a model behind an API: its tokens are the service's "
            "own, without logprobs, and cannot be trained on",
            hint="train with engines (vLLM, SGLang, prorl engine), or export the text for "
            "fine-tuning: `prorl export --format sft`",
        )
    if rollout.reward is None or not trained_segments(rollout):
        return unusable("the rollout is done but has no reward or no sampled token")
    if not is_score(rollout.reward):
        return unusable(f"the reward {shown(rollout.reward)} is beyond {MAX_SCORE:.0f}")
    return None


def refuse_pictures(rollout: Rollout) -> None:
    """Raises `InvalidRequest` if the policy saw pictures, for trainers whose rows have none."""
    if rollout.trajectory is not None and rollout.trajectory.has_pictures:
        raise InvalidRequest(
            f"{rollout.rollout_id}: the policy saw pictures, which this trainer's rows do not have",
            hint="train with VeRL or TRL's GRPOTrainer a model that sees, or on tasks of text",
        )


def other_policy(rollout: Rollout, versions: Collection[int]) -> ErrorInfo | None:
    """Returns why a rollout is not of the trainer's policy, whose weights have had these
    `versions`; None if all its sampled tokens are."""
    sampled = {one for segment in trained_segments(rollout) for one in segment.policy_versions}
    others = sorted(sampled - {NOT_SAMPLED, *versions})
    if not others:
        return None
    return ErrorInfo(
        kind="OtherPolicy",
        blame=Blame.SERVICE,
        message=f"weights of version {', '.join(map(str, others))} sampled it, the trainer's are "
        f"{', '.join(map(str, sorted(versions))) or 'none'}",
        hint="let nothing but this trainer update these engines",
    )


def checked(rollout: Rollout, *, engine: str, versions: Collection[int]) -> Rollout:
    """Returns a rollout, with an error if a token of it is not of this trainer's own `engine`, or
    not of the `versions` of its weights that it may be of."""
    if failure_of(rollout) is not None:
        return rollout
    assert rollout.trajectory is not None
    own = (one for one in rollout.trajectory.turns if not one.is_replayed)
    others = {one.backend for one in own} - {engine}
    problem = other_policy(rollout, versions)
    if others:
        message = f"tokens of {', '.join(sorted(others))}: this trainer's engines are at {engine}"
        problem = unusable(message, "use one service for each training")
    return rollout if problem is None else rollout.model_copy(update={"error": problem})


def trained_segments(rollout: Rollout) -> list[Segment]:
    """Returns the segments to learn from: they hold a sampled token, and are of a kind that the
    task trains on. Those of the agent's own conversation come last."""
    segments = rollout.trajectory.segments if rollout.trajectory else []
    found = [one for one in segments if one.is_trained and any(one.loss_mask)]
    return sorted(found, key=lambda one: one.kind == "main")


def is_cut_off(trajectory: Trajectory) -> bool:
    """Returns whether the agent did not end by itself. TRL's plug-in learns nothing from such a
    rollout by default (DAPO's overlong filtering), VeRL's does."""
    return trajectory.finish_reason is not FinishReason.FINISHED


@dataclass(frozen=True, slots=True)
class SoftPunishment:
    """DAPO's penalty for rollouts that are too long (arXiv 2503.14476, section 3.4).

    0 to `max_tokens` - `buffer_tokens` sampled tokens, then down to -1 at `max_tokens`. The
    original counts all tokens of a response. In an agent's rollout many of them are tool output,
    which the policy did not choose: only sampled tokens count here. The trainer adds the penalty to
    the reward, so that a sampler's filter sees the reward without it.
    """

    max_tokens: int
    buffer_tokens: int
    __pydantic_config__ = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        if not 0 < self.buffer_tokens <= self.max_tokens:
            raise ValueError(
                f"buffer_tokens={self.buffer_tokens} must be above 0 and at most "
                f"max_tokens={self.max_tokens}"
            )

    def of(self, trajectory: Trajectory) -> float:
        sampled = sum(sum(segment.loss_mask) for segment in trajectory.segments)
        excess = sampled - (self.max_tokens - self.buffer_tokens)
        return -min(1.0, max(0.0, excess / self.buffer_tokens))


Overlong = Literal["mask", "keep"] | SoftPunishment
"""What is learnt from rollouts that did not stop by themselves: "mask" leaves them out of the loss,
and their reward in the baseline of their group. "keep" treats them like others; a `SoftPunishment`
does, too, but lowers rewards."""


def shaped_reward(rollout: Rollout, overlong: Overlong) -> float | None:
    if isinstance(overlong, SoftPunishment) and rollout.trajectory and rollout.reward is not None:
        return rollout.reward + overlong.of(rollout.trajectory)
    return rollout.reward


def turn_rewards(trajectory: Trajectory, segment: Segment) -> dict[int, float]:
    """Returns the rewards of a segment's turns, by the place of their last token in its
    `response_ids`."""
    return {
        turn.stop - 1: turn.reward
        for turn in trajectory.turns
        if turn.reward is not None
        and turn.stop > turn.start
        and not turn.is_replayed
        and trajectory.segments[turn.segment] is segment
    }


def token_rewards(
    total: float, of_turns: Mapping[int, float], loss_mask: Sequence[int]
) -> list[float]:
    """Returns the rewards of a segment's tokens, float[R]: of the whole rollout, they sum to its
    reward `total`.

    Each turn's reward is on its last token (`turn_rewards`). The rest of `total`, which may be
    negative, is on the last sampled token: rewards of turns in other segments and of turns that
    were cut off, penalties of length, and what another reward function makes of it. A trainer
    that takes one reward for a rollout thus takes `total`.
    """
    rewards = [of_turns.get(place, 0.0) for place in range(len(loss_mask))]
    last = max((place for place, one in enumerate(loss_mask) if one), default=None)
    if last is not None:
        rewards[last] += total - fsum(rewards)
    return rewards


def is_informative(rewards: Sequence[float | None]) -> bool:
    known = [reward for reward in rewards if reward is not None]
    return bool(known) and min(known) < max(known)


def advantages(rewards: Sequence[float | None]) -> list[float]:
    """Standardises rewards over the group; 0 without a reward, or if all are equal."""
    if not is_informative(rewards):
        return [0.0] * len(rewards)
    known = [reward for reward in rewards if reward is not None]
    mean, scale = fmean(known), pstdev(known) + 1e-8
    return [0.0 if reward is None else (reward - mean) / scale for reward in rewards]


def trained_masks(
    rollout: Rollout, *, cut_off: Literal["mask", "keep"] = "mask"
) -> list[list[int]]:
    """Returns a mask for each segment, 0/1[R]: 1 where a sampled token is learnt from.

    All 0 in a rollout that failed, in segments that the task does not train on, and, with "mask",
    in a rollout that was cut off.
    """
    trajectory = rollout.trajectory
    if trajectory is None:
        return []
    is_left_out = failure_of(rollout) is not None or (cut_off == "mask" and is_cut_off(trajectory))
    trained = [] if is_left_out else trained_segments(rollout)
    return [
        one.loss_mask if any(one is other for other in trained) else [0] * len(one.loss_mask)
        for one in trajectory.segments
    ]


def outage_of(backends: Sequence[BackendStatus]) -> ErrorInfo | None:
    """Returns why no rollout can be sampled at all; None while any engine serves or will soon."""
    if any(one.state is not BackendState.DOWN for one in backends):
        return None
    down = ", ".join(f"{one.url} ({one.reason})" if one.reason else one.url for one in backends)
    return ErrorInfo(
        kind="BackendUnavailable",
        blame=Blame.BACKEND,
        message=f"no engine serves; down: {down}"
        if down
        else "the service has no inference engine",
        hint="start the engine again, or look at `GET /v1/backends`",
        retryable=True,
    )


def blamed_on_engines(rollout: Rollout, outage: ErrorInfo | None) -> Rollout:
    """Returns `rollout`, with `outage` as its error if it was cancelled without an error."""
    if outage is None or rollout.error is not None or rollout.state is not RolloutState.CANCELLED:
        return rollout
    return rollout.model_copy(update={"error": outage})


def unusable(message: str, hint: str = "") -> ErrorInfo:
    return ErrorInfo(kind="UnusableTrajectory", blame=Blame.SERVICE, message=message, hint=hint)


def failure_summary(failures: Sequence[ErrorInfo | None]) -> str:
    """Returns the most frequent reasons, each once, with what to do about it. None: not failed."""
    reasons = Counter(
        f"{one.kind} (blame: {one.blame.value}): {one.message}"
        + (f"\n      {one.hint}" if one.hint else "")
        for one in failures
        if one is not None
    )
    lines = [f"\n  {count} x {reason}" for reason, count in reasons.most_common(3)]
    return f"{reasons.total()} of {len(failures)} rollouts failed" + "".join(lines)


def component_means(components: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns `prorl/reward/NAME`, the mean over the rollouts that have the component.

    Figures of harnesses, `harness_NAME`, are `prorl/harness/NAME`.
    """
    found: dict[str, list[float]] = {}
    for one in components:
        for name, value in one.items():
            found.setdefault(_metric(name), []).append(value)
    return {name: mean_of(values) or 0.0 for name, values in found.items()}


def _metric(component: str) -> str:
    figure = component.removeprefix("harness_")
    return f"prorl/reward/{component}" if figure == component else f"prorl/harness/{figure}"
