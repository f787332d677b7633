"""The tripwire for tokens of another policy: which steps it warns about, and which end a run."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.client.off_policy import (
    FLOOR_NATS,
    LOGPROBS_MODE,
    STOP_NATS,
    TIED_HEAD,
    WARN_NATS,
    OffPolicyWatch,
    PolicyDiffers,
)


def watch(*first: float) -> OffPolicyWatch:
    one = OffPolicyWatch([LOGPROBS_MODE, TIED_HEAD])
    for step, mean in enumerate(first):
        assert one.add(mean, step=step) is None
    return one


@given(st.lists(st.floats(0, FLOOR_NATS), min_size=1, max_size=20))
def test_rounding_is_never_warned_about(means: list[float]) -> None:
    watch(*means)


@given(st.floats(0.003, 0.03), st.lists(st.floats(0.3, 3), min_size=1, max_size=20))
def test_bf16_engines_may_vary_about_their_own_noise(own: float, factors: list[float]) -> None:
    watch(own, *(min(own * factor, WARN_NATS) for factor in factors))


@given(st.floats(0, 1e-4), st.integers(1, 6), st.floats(0.011, 0.99))
def test_a_run_that_was_exact_is_warned_soon(own: float, steps: int, mean: float) -> None:
    assert watch(*[own] * steps).add(mean, step=steps)


@given(st.lists(st.floats(0, 0.01), max_size=5), st.floats(WARN_NATS * 1.001, 0.99))
def test_a_large_difference_is_warned_about_at_any_step(first: list[float], mean: float) -> None:
    assert watch(*first).add(mean, 5 * mean, step=9)


@pytest.mark.parametrize("mean", [STOP_NATS, 4.2, math.inf, math.nan])
@pytest.mark.parametrize("first", [(), (1e-6,), (1e-6,) * 5])
def test_another_policy_ends_training_at_any_step(mean: float, first: tuple[float, ...]) -> None:
    with pytest.raises(PolicyDiffers) as error:
        watch(*first).add(mean, step=7)
    assert "step 7" in error.value.message
    assert error.value.hint.startswith("what fits:\n")


def test_a_difference_is_warned_about_again_only_when_it_has_doubled() -> None:
    one = watch(1e-6)
    warnings = [one.add(mean, step=step) for step, mean in enumerate([0.2, 0.3, 0.39, 0.4, 0.5])]
    assert [warning is not None for warning in warnings] == [True, False, False, True, False]


def test_only_causes_that_fit_are_listed() -> None:
    at_once, later = watch().add(0.5, step=1), watch(1e-6).add(0.5, step=2)
    assert at_once
    assert "processed_logprobs" in at_once
    assert "weight_tying" not in at_once
    assert later
    assert "weight_tying" in later
    assert "processed_logprobs" not in later
    assert "1e-06 in the run's first steps" in later
