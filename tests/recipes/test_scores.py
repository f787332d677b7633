import itertools

import pytest

from recipes.common.evaluation.pass_at_k import pass_at_k, score, wilson


def test_wilson_intervals_match_published_ones() -> None:
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


def test_pass_at_k_is_the_share_of_k_subsets_with_a_success() -> None:
    solved: dict[str, list[bool | None]] = {
        "a": [True, False, False, None],
        "b": [True] * 4,
        "c": [False] * 4,
    }
    for k in (1, 2, 3, 4):
        chosen = [
            any(choice) for seeds in solved.values() for choice in itertools.combinations(seeds, k)
        ]
        assert pass_at_k(solved, k).share == pytest.approx(sum(chosen) / len(chosen))
    assert pass_at_k(solved, 1).share == pytest.approx(score(solved).pass_at_1)


def test_the_interval_of_pass_at_k_is_a_bootstrap() -> None:
    """Shares of 0 and 1 alone give a binomial interval: near Wilson's for large samples."""
    solved = {str(number): [number < 60, number < 60] for number in range(200)}
    found = pass_at_k(solved, 2)
    assert (found.low, found.high) == pytest.approx(wilson(0.3, 200), abs=0.01)
    assert found == pass_at_k(solved, 2)


def test_the_interval_is_a_point_if_all_instances_are_alike() -> None:
    found = pass_at_k({"a": [True, False], "b": [False, True]}, 2)
    assert (found.low, found.share, found.high) == (1.0, 1.0, 1.0)
