"""Early verdicts on groups, which never contradict those on the whole groups."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.sampling.filter import GroupState, Scores, outcome
from prorl_service.schemas.sampling import Filter

scores = st.one_of(st.none(), st.sampled_from([0.0, 0.1, 0.3, 1.0]), st.floats(0, 1))
bounds = st.one_of(st.none(), st.floats(0, 1))


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    low, high = draw(bounds), draw(bounds)
    if low is not None and high is not None:
        low, high = sorted((low, high))
    is_known = draw(st.booleans())
    return Filter(
        min_std=draw(st.sampled_from([0.0, 0.2])),
        min_mean=low,
        max_mean=high,
        lowest=0.0 if is_known else None,
        highest=1.0 if is_known else None,
        min_scored=draw(st.integers(2, 5)),
    )


@given(st.lists(scores, min_size=2, max_size=6), filters())
def test_early_verdicts_are_those_of_the_whole_group(
    ended: list[float | None], wanted: Filter
) -> None:
    n = len(ended)
    final = outcome(Scores.of(*ended), n, wanted)
    assert final is not GroupState.UNDER_WAY
    for known in range(n):
        early = outcome(Scores.of(*ended[:known]), n, wanted)
        assert early is not GroupState.INFORMATIVE
        if early is GroupState.FAILED:
            assert final is GroupState.FAILED
        elif early is GroupState.UNINFORMATIVE:
            assert final in (GroupState.UNINFORMATIVE, GroupState.FAILED)


@pytest.mark.parametrize(
    ("ended", "wanted", "found"),
    [
        ([0.1, 0.1, 0.1, 0.1], Filter(), GroupState.UNINFORMATIVE),
        ([0.1, 0.2, 0.1, 0.2], Filter(min_std=0.1), GroupState.UNINFORMATIVE),
        ([0, 1], Filter(min_scored=8), GroupState.INFORMATIVE),
    ],
)
def test_verdicts_on_whole_groups(
    ended: list[float | None], wanted: Filter, found: GroupState
) -> None:
    assert outcome(Scores.of(*ended), len(ended), wanted) is found


def naive(ended: list[float | None], n: int, wanted: Filter) -> GroupState:
    """Returns the outcome by definition.

    Tries every number of scores to come, all lowest or all highest.
    """
    known = [score for score in ended if score is not None]
    to_come = n - len(ended)
    if len(known) + to_come < min(wanted.min_scored, n):
        return GroupState.FAILED
    lowest = -math.inf if wanted.lowest is None else wanted.lowest
    highest = math.inf if wanted.highest is None else wanted.highest
    means = [
        math.fsum(possible) / len(possible)
        for bound in (lowest, highest)
        for count in range(to_come + 1)
        if (possible := [*known, *[bound] * count])
    ]
    too_low = wanted.min_mean is not None and max(means) < wanted.min_mean
    too_high = wanted.max_mean is not None and min(means) > wanted.max_mean
    return GroupState.UNINFORMATIVE if too_low or too_high else GroupState.UNDER_WAY


quarters = st.integers(-8, 8).map(lambda number: number / 4)
tenths = st.one_of(st.none(), st.integers(-20, 20).map(lambda number: number / 10))


@given(
    st.lists(st.one_of(st.none(), quarters), max_size=12),
    st.integers(1, 12),
    *[tenths] * 4,
    st.integers(2, 6),
)
def test_early_verdicts_are_those_of_the_definition(
    ended: list[float | None],
    to_come: int,
    low: float | None,
    high: float | None,
    lowest: float | None,
    highest: float | None,
    min_scored: int,
) -> None:
    if low is not None and high is not None:
        low, high = sorted((low, high))
    if lowest is not None and highest is not None:
        lowest, highest = sorted((lowest, highest))
    wanted = Filter(
        min_mean=low, max_mean=high, lowest=lowest, highest=highest, min_scored=min_scored
    )
    n = len(ended) + to_come
    assert outcome(Scores.of(*ended), n, wanted) is naive(ended, n, wanted)


@pytest.mark.parametrize(
    "wanted", [Filter(), Filter(min_mean=0.01, max_mean=0.9, lowest=0, highest=1)]
)
def test_a_group_of_thousands_is_judged_at_each_end_in_constant_time(wanted: Filter) -> None:
    began_at = time.process_time()
    scores = Scores()
    for index in range(4096):
        scores.add(index, float(index % 2))
        found = outcome(scores, 4096, wanted)
    assert found is GroupState.INFORMATIVE
    assert time.process_time() - began_at < 2


finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(0, allow_nan=False, allow_infinity=False)


@given(
    st.lists(st.one_of(st.none(), finite), min_size=2, max_size=8),
    positive,
    *[st.one_of(st.none(), finite)] * 4,
)
def test_any_finite_scores_get_a_verdict_that_fits_their_mean(
    ended: list[float | None],
    min_std: float,
    low: float | None,
    high: float | None,
    lowest: float | None,
    highest: float | None,
) -> None:
    if low is not None and high is not None:
        low, high = sorted((low, high))
    if lowest is not None and highest is not None:
        lowest, highest = sorted((lowest, highest))
    wanted = Filter(min_std=min_std, min_mean=low, max_mean=high, lowest=lowest, highest=highest)
    for count in range(len(ended)):
        outcome(Scores.of(*ended[:count]), len(ended), wanted)
    known = [score for score in ended if score is not None]
    found = outcome(Scores.of(*ended), len(ended), wanted)
    if len(known) < 2:
        assert found is GroupState.FAILED
    elif found is GroupState.INFORMATIVE:
        assert min(known) < max(known)
        assert max(known) - min(known) > min_std  # infinite, if need be
        assert low is None or max(known) >= low
        assert high is None or min(known) <= high
    elif min_std == 0 and low is high is None:
        assert len(set(known)) == 1
