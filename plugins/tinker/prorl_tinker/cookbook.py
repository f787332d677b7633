"""Rollouts as `TrajectoryGroup`s, for those who train by tinker-cookbook's functions.

A run of sampled tokens is a transition; the cookbook makes a datum of those that extend each other.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from tinker import types
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition

from prorl_service.client.trainable import failure_of, trained_segments
from prorl_service.schemas import Rollout, Segment


def trajectory_groups(groups: Sequence[Sequence[Rollout]]) -> list[TrajectoryGroup]:
    """Returns the groups of a step without their failed rollouts, and without those of which fewer
    than two are left. Rewards are those of whole rollouts."""
    usable = [[one for one in group if failure_of(one) is None] for group in groups]
    return [_group(group) for group in usable if len(group) > 1]


def _group(group: Sequence[Rollout]) -> TrajectoryGroup:
    rewards = [float(one.reward or 0) for one in group]
    components = [dict(one.reward_components) for one in group]
    return TrajectoryGroup([_trajectory(one) for one in group], rewards, components)


def _trajectory(rollout: Rollout) -> Trajectory:
    transitions = [one for segment in trained_segments(rollout) for one in _transitions(segment)]
    transitions[-1].episode_done = True
    return Trajectory(transitions=transitions, final_ob=types.ModelInput.empty())


def _transitions(segment: Segment) -> Iterator[Transition]:
    ids, start = [*segment.prompt_ids, *segment.response_ids], len(segment.prompt_ids)
    logprobs = [0.0] * start + segment.logprobs
    for is_sampled, run in groupby(segment.loss_mask):
        end = start + len(list(run))
        if is_sampled:
            action = TokensWithLogprobs(ids[start:end], logprobs[start:end])
            observation = types.ModelInput.from_ints(ids[:start])
            yield Transition(observation, action, reward=0.0, episode_done=False)
        start = end
