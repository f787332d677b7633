"""Whether a group can teach anything, as early as that can be known. Pure arithmetic.

An early verdict is one that no scores of the rollouts to come could change. That a group is
informative is said only of a whole one, for it is trained on whole.
"""

import math
from collections.abc import Iterable
from enum import StrEnum

from prorl_service.sampler_schemas import Filter


class Outcome(StrEnum):
    OPEN = "open"
    INFORMATIVE = "informative"
    UNINFORMATIVE = "uninformative"
    FAILED = "failed"
    """Too few of its rollouts have a score."""


def outcome(scores: Iterable[float | None], n: int, wanted: Filter) -> Outcome:
    """`scores`: of the rollouts of `n` that have ended; None of one that failed."""
    ended = list(scores)
    known = [score for score in ended if score is not None]
    to_come = n - len(ended)
    if len(known) + to_come < min(wanted.min_scored, n):
        return Outcome.FAILED
    if to_come == 0:
        return Outcome.INFORMATIVE if _is_informative(known, wanted) else Outcome.UNINFORMATIVE
    return Outcome.OPEN if _can_become(known, to_come, wanted) else Outcome.UNINFORMATIVE


def _is_informative(scores: list[float], wanted: Filter) -> bool:
    mean = _mean(scores)
    if wanted.min_mean is not None and mean < wanted.min_mean:
        return False
    if wanted.max_mean is not None and mean > wanted.max_mean:
        return False
    if wanted.min_std == 0:
        return min(scores) < max(scores)  # exact, where a standard deviation is rounded
    variance = math.fsum((score - mean) ** 2 for score in scores) / len(scores)
    return math.sqrt(variance) > wanted.min_std


def _can_become(known: list[float], to_come: int, wanted: Filter) -> bool:
    """Whether some scores in range of those to come, none of them failing or some, bring the mean
    within bounds. A rollout that fails drops out of the mean, so that its extremes are at any
    number of scores up to `to_come`, all lowest or all highest."""
    possible = [
        _mean([*known, *[bound] * count])
        for count in range(to_come + 1)
        for bound in _range(wanted)
        if known or count
    ]
    too_low = wanted.min_mean is not None and max(possible) < wanted.min_mean
    too_high = wanted.max_mean is not None and min(possible) > wanted.max_mean
    return not (too_low or too_high)


def _range(wanted: Filter) -> tuple[float, float]:
    lowest = -math.inf if wanted.lowest is None else wanted.lowest
    return lowest, math.inf if wanted.highest is None else wanted.highest


def _mean(scores: list[float]) -> float:
    """The one formula, so that a bound is never off by a rounding."""
    return math.fsum(scores) / len(scores)
