import pytest

from recipes.common.scores import score, wilson


def test_wilson_is_as_published() -> None:
    # Newcombe 1998, table I: 81 of 263 and 0 of 20.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1, 20) == pytest.approx((0.8389, 1.0), abs=5e-5)


def test_pass_at_1_is_the_mean_over_the_seeds() -> None:
    scored = score({"a": [True, True], "b": [True, False], "c": [False, None], "d": [False, False]})
    assert scored.per_seed == [0.5, 0.25]
    assert scored.pass_at_1 == 0.375
    assert (scored.low, scored.high) == wilson(0.375, 4)
    assert (scored.instances, scored.seeds, scored.missing) == (4, 2, 1)


def test_instances_must_have_the_same_seeds() -> None:
    with pytest.raises(ValueError, match="unpack"):
        score({"a": [True], "b": [True, False]})
