"""What a score is, and means of whatever numbers a journal holds."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.agents.base import Verdict
from prorl_service.agents.nemo_gym.verdict import verdict_of
from prorl_service.client.trainable import component_means
from prorl_service.errors import EvaluatorError
from prorl_service.sampling.candidates import Candidate, Tally
from prorl_service.sampling.filter import GroupState
from prorl_service.sampling.sampler import Sampler
from prorl_service.schemas import Difficulty
from prorl_service.schemas.numbers import MAX_SCORE, is_score, joint_mean, mean_of
from prorl_service.schemas.sampling import DifficultyCounts, SamplerSpec, summed
from tests.sampling.sampler_world import group

finite = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.one_of(
    st.floats(), st.integers(), st.floats(-2e6, 2e6), st.just(10**400), st.just(-(10**5000))
)
anything = st.one_of(numbers, st.text(), st.none(), st.just(1j), st.lists(st.floats()))


def fits(value: object) -> bool:
    if not isinstance(value, int) and not (isinstance(value, float) and math.isfinite(value)):
        return False
    return abs(Fraction(value)) <= MAX_SCORE


@given(anything)
def test_a_verdict_takes_numbers_within_the_bound_and_no_others(value: object) -> None:
    assert is_score(value) is fits(value)
    for reward, part, turn in ((value, 0.0, 0.0), (0.0, value, 0.0), (0.0, 0.0, value)):
        if fits(value):
            Verdict(reward, {"part": part}, turn_rewards={0: turn})  # type: ignore[arg-type, dict-item]
            continue
        with pytest.raises(EvaluatorError, match="must be a number from -1000000 to") as error:
            Verdict(reward, {"part": part}, turn_rewards={0: turn})  # type: ignore[arg-type, dict-item]
        assert len(error.value.message) < 250


@given(st.one_of(numbers, st.text(), st.none(), st.booleans(), st.integers(-1, 4)))
def test_a_verdict_rewards_turns_of_its_rollout_and_no_others(turn: object) -> None:
    verdict = Verdict(1.0, turn_rewards={turn: 0.5})  # type: ignore[dict-item]
    if type(turn) is int and 0 <= turn < 3:
        assert verdict.checked(turns=3) == verdict
    else:
        with pytest.raises(EvaluatorError, match="has 3 turns, and none is") as error:
            verdict.checked(turns=3)
        assert len(error.value.message) < 250


@given(anything, st.lists(numbers, max_size=4))
def test_a_servers_reward_is_bounded_and_its_other_figures_are_left_out(
    reward: object, others: list[float]
) -> None:
    figures = {f"f{i}": one for i, one in enumerate(others) if one == one and abs(one) < math.inf}
    answer = {name: value for name, value in figures.items() if abs(value) < 10**400}
    if fits(reward):
        verdict = verdict_of(answer | {"reward": reward}, {}, server="s")
        assert verdict.components == {name: one for name, one in answer.items() if fits(one)}
    else:
        with pytest.raises(EvaluatorError, match="unusable reward"):
            verdict_of(answer | {"reward": reward}, {}, server="s")


@given(st.lists(finite, min_size=1, max_size=8), st.lists(finite, max_size=8))
def test_means_of_finite_numbers_lie_among_them(first: list[float], second: list[float]) -> None:
    mean = mean_of(first)
    assert mean is not None
    nearly = Fraction(math.ulp(mean))
    assert min(first) - nearly <= Fraction(mean) <= max(first) + nearly
    joint = joint_mean([(len(first), mean), (len(second), mean_of(second)), (0, None)])
    assert joint is not None
    assert math.isfinite(joint)
    assert (mean_of([]), joint_mean([])) == (None, None)
    assert component_means([{"x": value} for value in first]) == {"prorl/reward/x": mean}


@given(st.lists(st.lists(finite, max_size=4), max_size=4), finite)
def test_counts_of_samplers_survive_any_score(groups: list[list[float]], before: float) -> None:
    level = Difficulty(kind="k", level=1)
    counts = [DifficultyCounts(difficulty=level, scored=2, score_mean=before)]
    for number, scores in enumerate(groups):
        made = group(f"g{number}")
        task = made.task.model_copy(update={"difficulty": level})
        one = Candidate(made.model_copy(update={"task": task}), GroupState.FAILED)
        for index, score in enumerate(scores):
            one.scores.add(index, score)
        one.dropped()
        counts = summed([*counts, *filter(None, [one.counts()])])
    assert counts[0].score_mean is not None
    tally = Tally(scored=2, score_sum=before)
    tally.count([MAX_SCORE, -MAX_SCORE, MAX_SCORE])
    sampler = Sampler("s", SamplerSpec(), slots=1)
    sampler.tally = Tally.model_validate_json(tally.model_dump_json())
    assert sampler.status(1).score_mean is not None
