"""Numbers that rollouts are judged by: the one rule for what a score is, means that hold, pass@k.

A score enters where a verdict is made. Means are of whatever a journal or another service holds,
which may be of a version without the rule. Makes no verdict on a group: `sampling.filter` does.
"""

import math
from collections.abc import Iterable
from fractions import Fraction
from statistics import fmean
from typing import TypeGuard

MAX_SCORE = 1e6
"""Largest magnitude of a reward or a component: a larger one is a slip, such as a division by
almost zero, and would outweigh all others in a batch."""


def is_score(value: object) -> TypeGuard[float]:
    """Returns whether `value` can be a reward or a component."""
    return isinstance(value, int | float) and -MAX_SCORE <= value <= MAX_SCORE


def shown(value: object) -> str:
    """Returns `value` as a message shows it: cut off, since an answer may be anything."""
    try:
        return f"{value!r:.80}"
    except ValueError:  # an integer of too many digits
        return f"an {type(value).__name__} of thousands of digits"


def mean_of(values: Iterable[float]) -> float | None:
    """Returns the mean of finite numbers, whose sum may be beyond all floats; None of none."""
    known = list(values)
    try:
        return fmean(known) if known else None
    except OverflowError:
        return float(sum(map(Fraction, known)) / len(known))


def joint_mean(parts: Iterable[tuple[int, float | None]]) -> float | None:
    """Returns the mean of several samples by their sizes and means; None if all are empty."""
    known = [(size, mean) for size, mean in parts if size and mean is not None]
    total = sum((size * Fraction(mean) for size, mean in known), Fraction())
    return float(total / sum(size for size, _ in known)) if known else None


def pass_at_k(rollouts: int, solved: int, k: int) -> float:
    """Returns the chance that one of `k` of these rollouts solves their task, as `solved` of them
    did: the unbiased estimate of Chen et al. 2021 (arXiv 2107.03374)."""
    return 1.0 - math.comb(rollouts - solved, k) / math.comb(rollouts, k)
