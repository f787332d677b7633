"""Verdicts on whether a group can teach anything, as early as possible. Pure arithmetic.

An early verdict is one that the scores of the rollouts to come cannot change. Only a whole group is
found informative, since it is trained on whole. All verdicts but the last of a group take the same
time, however many rollouts have ended. Arithmetic is exact, so no finite score overflows.
"""

import math
from enum import StrEnum
from fractions import Fraction
from typing import Self

from prorl_service.schemas.sampling import Filter

ROUNDING = 4
"""Largest error of a whole group's mean, in units in the last place."""


class GroupState(StrEnum):
    """State of a candidate group. A verdict is one of the middle four."""

    WAITING = "waiting"
    UNDER_WAY = "under_way"
    INFORMATIVE = "informative"
    UNINFORMATIVE = "uninformative"
    FAILED = "failed"
    """Too few of its rollouts have a score."""
    GIVEN = "given"
    PASSED_OVER = "passed_over"


class Scores:
    """The scores of a group's ended rollouts, by index; None for a rollout that failed."""

    def __init__(self) -> None:
        self.total = Fraction()
        """Exact sum, so that it does not depend on the order in which rollouts end."""
        self.squares = Fraction()
        """Exact sum of the squares."""
        self.count_known = 0
        self._by_index: dict[int, float | None] = {}

    @classmethod
    def of(cls, *scores: float | None) -> Self:
        found = cls()
        for index, score in enumerate(scores):
            found.add(index, score)
        return found

    def __len__(self) -> int:
        return len(self._by_index)

    def __contains__(self, index: int) -> bool:
        return index in self._by_index

    def add(self, index: int, score: float | None) -> None:
        self._by_index[index] = score
        if score is not None:
            self.total += Fraction(score)
            self.squares += Fraction(score) ** 2
            self.count_known += 1

    def known(self) -> list[float]:
        return [score for score in self._by_index.values() if score is not None]


def outcome(scores: Scores, n: int, wanted: Filter) -> GroupState:
    """Returns the verdict on a group of `n` rollouts."""
    to_come = n - len(scores)
    if scores.count_known + to_come < min(wanted.min_scored, n):
        return GroupState.FAILED
    if to_come == 0:
        is_informative = _is_informative(scores, wanted)
        return GroupState.INFORMATIVE if is_informative else GroupState.UNINFORMATIVE
    return (
        GroupState.UNDER_WAY if _can_become(scores, to_come, wanted) else GroupState.UNINFORMATIVE
    )


def _is_informative(scores: Scores, wanted: Filter) -> bool:
    exact = scores.total / scores.count_known
    mean = float(exact)
    if wanted.min_mean is not None and mean < wanted.min_mean:
        return False
    if wanted.max_mean is not None and mean > wanted.max_mean:
        return False
    if wanted.min_std == 0:
        return min(scores.known()) < max(scores.known())  # a variance may be below all floats
    variance = scores.squares / scores.count_known - exact**2
    return _rounded(variance) > wanted.min_std * wanted.min_std


def _rounded(value: Fraction) -> float:
    """Returns the nearest float, so that a bound written in decimals is met exactly."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _can_become(scores: Scores, to_come: int, wanted: Filter) -> bool:
    """Returns whether possible scores of the rollouts to come, some of which may fail, bring the
    mean within bounds."""
    if wanted.min_mean is not None and wanted.highest is not None:
        best = max(_extremes(scores, to_come, wanted.highest))
        if best < wanted.min_mean - ROUNDING * math.ulp(wanted.min_mean):
            return False
    if wanted.max_mean is not None and wanted.lowest is not None:
        least = min(_extremes(scores, to_come, wanted.lowest))
        return least <= wanted.max_mean + ROUNDING * math.ulp(wanted.max_mean)
    return True


def _extremes(scores: Scores, to_come: int, bound: float) -> list[Fraction]:
    """Returns the mean with all rollouts to come at `bound`, and without them, as failed ones do
    not count. With some of them it lies between."""
    whole = (scores.total + to_come * Fraction(bound)) / (scores.count_known + to_come)
    return [whole, scores.total / scores.count_known] if scores.count_known else [whole]
