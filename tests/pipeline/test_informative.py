"""Early verdicts on groups never differ from what the whole group would have been found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.pipeline.informative import Outcome, outcome
from prorl_service.sampler_schemas import Filter

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
    final = outcome(ended, n, wanted)
    assert final is not Outcome.OPEN
    for known in range(n):
        early = outcome(ended[:known], n, wanted)
        assert early is not Outcome.INFORMATIVE
        if early is Outcome.FAILED:
            assert final is Outcome.FAILED
        elif early is Outcome.UNINFORMATIVE:
            assert final in (Outcome.UNINFORMATIVE, Outcome.FAILED)


@pytest.mark.parametrize(
    ("ended", "wanted", "found"),
    [
        ([1, 1, None, 1], Filter(), Outcome.UNINFORMATIVE),
        ([1, 1, None, 0], Filter(), Outcome.INFORMATIVE),
        ([None, None, None], Filter(), Outcome.FAILED),
        ([None], Filter(min_scored=4), Outcome.FAILED),
        ([1, 1, 1], Filter(), Outcome.OPEN),
        ([1, 1, 1], Filter(max_mean=0.5, lowest=0, highest=1), Outcome.UNINFORMATIVE),
        ([1, 1, 0], Filter(max_mean=0.5, lowest=0, highest=1), Outcome.OPEN),
        ([0.1, 0.1, 0.1, 0.1], Filter(), Outcome.UNINFORMATIVE),
        ([0.1, 0.2, 0.1, 0.2], Filter(min_std=0.1), Outcome.UNINFORMATIVE),
    ],
)
def test_verdicts_on_groups_of_four(
    ended: list[float | None], wanted: Filter, found: Outcome
) -> None:
    assert outcome(ended, 4, wanted) is found


def test_a_group_that_fails_in_part_is_held_to_its_own_size() -> None:
    assert outcome([0, 1], 2, Filter(min_scored=8)) is Outcome.INFORMATIVE
