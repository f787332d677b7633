"""Conversion of groups to Tinker's data: shifts, masks, advantages, and what gives none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.client.trainable import Overlong, SoftPunishment
from prorl_service.schemas import Blame, ErrorInfo, FinishReason, Rollout, RolloutState
from prorl_tinker.convert import Sample, samples_of
from tests import builders
from tests.client.rewarded import rewarded_rollouts

ERROR = ErrorInfo(kind="SandboxError", blame=Blame.SANDBOX, message="died")
FAILED = builders.rollout("g.9", state=RolloutState.FAILED, error=ERROR, reward=None)
MASKS = st.lists(st.integers(0, 1), min_size=1, max_size=12).filter(any)


def done(reward: float, *masks: list[int], **fields: Any) -> Rollout:
    segments = [builders.segment(mask) for mask in masks or ([1, 0, 1],)]
    return builders.rollout("g.0", *segments, turns=1, reward=reward, **fields)


def samples(*rollouts: Rollout, overlong: Overlong = "mask") -> list[Sample]:
    return samples_of(rollouts, overlong)


def column(sample: Sample, name: str) -> list[float]:
    return list(sample.datum.loss_fn_inputs[name].data)


def test_inputs_and_targets_are_shifted_by_one() -> None:
    good, bad = samples(done(1.0), done(0.0))
    assert good.datum.model_input.to_ints() == [7, 8, 10, 11]
    assert column(good, "target_tokens") == [8, 10, 11, 12]
    assert column(good, "logprobs") == [0.0, -0.5, 0.0, -0.5]
    assert column(good, "advantages") == pytest.approx([0, 1, 0, 1])
    assert column(bad, "advantages") == pytest.approx([0, -1, 0, -1])
    assert set(good.datum.loss_fn_inputs) == {"target_tokens", "logprobs", "advantages"}


@given(masks=st.lists(MASKS, min_size=2, max_size=5))
def test_columns_are_as_long_as_targets_and_advantages_are_where_the_policy_sampled(
    masks: list[list[int]],
) -> None:
    group = [done(float(number), mask) for number, mask in enumerate(masks)]
    for sample in samples(*group):
        targets = column(sample, "target_tokens")
        assert len(targets) == sample.datum.model_input.length == len(sample.mask)
        advantages, logprobs = column(sample, "advantages"), column(sample, "logprobs")
        assert [one != 0 for one in advantages] == [one != 0 for one in logprobs]
        assert [one != 0 for one in advantages] == [one == 1 for one in sample.mask]
        assert sample.gaps(sample.logprobs) == [0.0] * sum(sample.mask)


def test_every_segment_gives_a_datum_with_the_advantage_of_its_rollout() -> None:
    first, second, other = samples(done(1.0, [1, 1], [0, 1]), done(0.0))
    assert column(first, "advantages")[1:] == pytest.approx([1, 1])
    assert column(second, "advantages")[1:] == pytest.approx([0, 1])
    assert column(other, "advantages")[1:] == pytest.approx([-1, 0, -1])


@given(rewarded_rollouts())
def test_rewards_of_turns_are_parts_of_the_rollouts(rollout: Rollout) -> None:
    assert rollout.reward is not None
    other = done(rollout.reward - 1)
    plain = rollout.model_copy(deep=True)
    assert plain.trajectory is not None
    for turn in plain.trajectory.turns:
        turn.reward = None
    for one, without in zip(samples(rollout, other), samples(plain, other), strict=True):
        assert column(one, "advantages") == column(without, "advantages")


def test_failed_rollouts_and_groups_of_one_reward_give_none() -> None:
    assert samples(done(1.0), done(1.0)) == []
    assert samples(FAILED, done(1.0)) == []
    assert len(samples(FAILED, done(1.0), done(0.0))) == 2


def test_text_of_a_model_behind_an_api_gives_none() -> None:
    others = [done(reward) for reward in (0.0, 1.0)]
    for one in others:
        assert one.trajectory is not None
        one.trajectory.policy = "gpt"
    assert samples(*others) == []
    assert len(samples(*others, done(1.0), done(0.0))) == 2


def test_a_rollout_that_was_cut_off_counts_in_the_baseline_alone() -> None:
    cut = done(0.0, finish_reason=FinishReason.LENGTH)
    [kept] = samples(done(1.0), cut)
    assert column(kept, "advantages")[1:] == pytest.approx([1, 0, 1])
    assert len(samples(done(1.0), cut, overlong="keep")) == 2


def test_a_soft_punishment_lowers_rewards() -> None:
    punished = samples(done(1.0, [1] * 4), done(1.0, [1]), overlong=SoftPunishment(4, 2))
    assert column(punished[0], "advantages")[1:] == pytest.approx([-1] * 4)
