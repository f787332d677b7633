"""Conversion of ended groups to AsyncGRPOTrainer's samples, compared with TRL's own worker."""

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.client.trainable import SoftPunishment, advantages
from prorl_service.schemas import (
    Blame,
    ErrorInfo,
    FinishReason,
    Rollout,
    RolloutState,
    ToolCallRecord,
)
from prorl_trl import checks
from prorl_trl.async_groups import PromptGroups
from prorl_trl.async_samples import RowAttempt, attempt_of, group_metrics, samples_of
from tests.trl.test_convert import QUESTION, make_groups, make_rollout, make_segment

REWARDS = st.lists(st.none() | st.floats(-10, 10, width=32), min_size=1, max_size=8)
ERROR = ErrorInfo(kind="SandboxError", blame=Blame.SANDBOX, message="died", retryable=True)
FAILED = make_rollout(state=RolloutState.FAILED, error=ERROR, reward=None)


def make_attempts(*rollouts: Rollout) -> list[RowAttempt]:
    return [attempt_of(rollout, overlong="mask") for rollout in rollouts]


def make_samples(*rollouts: Rollout) -> list[dict[str, Any]]:
    return samples_of(make_attempts(*rollouts), group_id=7, prompt=QUESTION)


# --- advantages ---------------------------------------------------------------------------------


@given(rewards=REWARDS)
def test_advantages_are_centred_and_scaled(rewards: list[float | None]) -> None:
    values = advantages(rewards)
    known = [one for one, reward in zip(values, rewards, strict=True) if reward is not None]
    assert all(one == 0 for one, reward in zip(values, rewards, strict=True) if reward is None)
    if len({reward for reward in rewards if reward is not None}) > 1:
        assert np.mean(known) == pytest.approx(0, abs=1e-4)
        assert np.std(known) <= 1 + 1e-6
        assert max(known) > 0 > min(known)
    else:
        assert set(values) == {0.0}


def test_rewards_that_differ_only_by_rounding_are_different() -> None:
    assert advantages([0.1, 0.1, 0.1, 0.1]) == [0, 0, 0, 0]
    low, high = advantages([0.1, 0.1 + 1e-12])
    assert low < 0 < high


# --- samples ------------------------------------------------------------------------------------


def test_every_segment_is_a_sample_with_the_advantage_of_its_rollout() -> None:
    compacted = make_rollout(
        make_segment([1, 1], last=9, version=3), make_segment([1, 0, 1], version=4), reward=1.0
    )
    first, second, other = make_samples(compacted, make_rollout(reward=0.0))
    assert [sample["model_version"] for sample in (first, second, other)] == [3, 4, 5]
    assert first["input_ids"].tolist() == [7, 8, 10, 9]
    assert first["advantage"] == second["advantage"] == -other["advantage"] > 0


def test_a_segment_without_a_sampled_token_costs_only_itself() -> None:
    stale = make_segment([1, 1], version=3)
    rollout = make_rollout(make_segment([1, 1]), stale, make_segment([0, 0]), reward=1.0)
    samples = make_samples(rollout, make_rollout(reward=0.0))
    assert [sample["model_version"] for sample in samples] == [5, 3, 5]
    assert group_metrics(make_attempts(rollout), version=6)["prorl/policy_lag"] == 3


def test_overlong_rollouts_are_in_the_baseline_but_give_no_sample() -> None:
    cut_off = make_rollout(make_segment([1, 1]), finish_reason=FinishReason.LENGTH, reward=0.0)
    [sample] = make_samples(make_rollout(reward=1.0), cut_off)
    assert sample["advantage"] == pytest.approx(1)


def test_soft_punishment_lowers_rewards() -> None:
    punishment = SoftPunishment(max_tokens=2, buffer_tokens=1)
    [attempt] = [attempt_of(make_rollout(reward=1.0), overlong=punishment)]
    assert attempt.whole.reward == 0


@pytest.mark.parametrize(
    "rollouts",
    [
        [make_rollout(reward=1.0), make_rollout(reward=1.0)],
        [make_rollout(reward=1.0), FAILED],
        [FAILED, FAILED],
    ],
)
def test_groups_that_teach_nothing_give_no_samples(rollouts: list[Rollout]) -> None:
    assert make_samples(*rollouts) == []


def test_traces_show_turns_and_tool_output() -> None:
    rollout = make_rollout(reward=1.0)
    assert rollout.trajectory is not None
    call = ToolCallRecord(name="bash", output="42")
    rollout.trajectory.turns[0] = rollout.trajectory.turns[0].model_copy(
        update={"tool_calls": [call]}
    )
    assert attempt_of(rollout, overlong="mask").completion == [
        {"role": "assistant", "content": "3"},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "3"},
    ]


# --- compared with TRL --------------------------------------------------------------------------


@pytest.mark.slow
@given(rewards=REWARDS)
def test_trl_makes_the_same_samples_of_an_informative_group(
    rewards: list[float | None],
) -> None:
    rollouts = [FAILED if reward is None else make_rollout(reward=reward) for reward in rewards]
    samples = [checks.async_sample_type()(**fields) for fields in make_samples(*rollouts)]
    theirs = _scored_by_trl(rewards)
    if not samples:
        assert {sample.advantage for sample in theirs} == {0.0}
        return
    scored = [one for one, reward in zip(theirs, rewards, strict=True) if reward is not None]
    for ours, their in zip(samples, scored, strict=True):
        assert ours.advantage == pytest.approx(their.advantage, rel=1e-4, abs=1e-4)
        assert ours.metrics["reward"] == their.metrics["reward"]
        assert ours.metrics["reward_std"] == pytest.approx(their.metrics["reward_std"], abs=1e-4)
        for field in ("input_ids", "completion_mask", "old_log_probs"):
            assert getattr(ours, field).dtype == getattr(their, field).dtype
            assert getattr(ours, field).tolist() == getattr(their, field).tolist()


def _scored_by_trl(rewards: list[float | None]) -> list[Any]:
    from accelerate.state import PartialState
    from trl.experimental.async_grpo import async_rollout_worker as trl_worker

    PartialState(cpu=True)  # its logger needs one
    sequence = trl_worker.TrainingSequence(
        [7, 8, 10, 11, 2], [0, 0, 1, 0, 1], [0, 0, -0.5, 0, -0.5], "r"
    )
    group = trl_worker.RolloutGroup(
        prompts=[QUESTION] * len(rewards),
        reward_kwargs={},
        completions=[[]] * len(rewards),
        completions_ids=[[]] * len(rewards),
        completions_sequences=[[sequence]] * len(rewards),
        tool_call_counts=[0] * len(rewards),
        tool_failure_counts=[0] * len(rewards),
        model_version=5,
        group_id=7,
        env_rewards=[None] * len(rewards),
        rollout_rewards=rewards,
    )
    loop = SimpleNamespace(
        reward_funcs=[],
        reward_func_names=["rollout"],
        _env_reward_types=[],
        _provides_rollout_reward=True,
    )
    return asyncio.run(trl_worker._AsyncRolloutLoop._score_group(loop, group))


def test_samples_have_all_that_trl_reads() -> None:
    fields = {field.name for field in dataclasses.fields(checks.async_sample_type())}
    [sample, _] = make_samples(make_rollout(reward=1.0), make_rollout(reward=0.0))
    assert fields - {"enqueued_at"} == sample.keys()


# --- metrics, candidates ------------------------------------------------------------------------


def test_metrics_count_what_is_not_trained_on() -> None:
    informative = make_attempts(make_rollout(reward=1.0), make_rollout(reward=0.0), FAILED)
    values = group_metrics(informative, version=6)
    assert values["prorl/failed"] == pytest.approx(1 / 3)
    assert values["prorl/policy_lag"] == 1
    assert values["prorl/reward"] == 0.5
    assert values["prorl/samples_per_rollout"] == pytest.approx(2 / 3)
    assert values["prorl/sampling/uninformative_total"] == 0
    assert values["prorl/sampling/failed_total"] == 0
    equal = group_metrics(make_attempts(make_rollout(), make_rollout()), version=5)
    assert equal["prorl/sampling/uninformative_total"] == 1
    failed = group_metrics(make_attempts(FAILED, FAILED), version=5)
    assert failed["prorl/sampling/failed_total"] == 1
    assert failed["prorl/sampling/uninformative_total"] == 0
    assert "prorl/reward" not in failed


def test_candidates_cycle_through_the_dataset_and_keep_row_and_version() -> None:
    dataset = [{"prompt": QUESTION}, {"prompt": QUESTION[1:]}]
    names = []

    def group_of(name: str, prompt: Any) -> Any:
        names.append(name)
        return make_groups([prompt], 1)[0]

    candidates = PromptGroups(dataset, group_of, run_id="run-a")
    groups = [next(candidates), next(candidates)]
    candidates.version = 3
    groups.append(next(candidates))
    assert [len(group.task.messages) for group in groups] == [2, 1, 2]
    assert [candidates.number_and_version(name) for name in names] == [(0, 0), (1, 0), (2, 3)]
    assert candidates.prompt(2) == QUESTION
    assert PromptGroups(iter(dataset), group_of, run_id="r").prompt(2) == []
