"""Pass@1 over seeds, with an interval. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

Z_95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Score:
    """Shares from 0 to 1. `pass_at_1`: mean over the seeds of the share of instances that were
    solved. `low`, `high`: see `wilson`. `missing`: rollouts without a verdict, counted as failed.
    """

    instances: int
    seeds: int
    per_seed: list[float]
    pass_at_1: float
    low: float
    high: float
    missing: int


def score(solved: Mapping[str, Sequence[bool | None]]) -> Score:
    """`solved`: by instance, for each seed; None where there is no verdict. Raises `ValueError`
    when there are no instances, or they differ in seeds."""
    [seeds] = {len(one) for one in solved.values()}
    per_seed = [fmean(bool(one[seed]) for one in solved.values()) for seed in range(seeds)]
    pass_at_1 = fmean(per_seed)
    low, high = wilson(pass_at_1, len(solved))
    missing = sum(verdict is None for one in solved.values() for verdict in one)
    return Score(len(solved), seeds, per_seed, pass_at_1, low, high, missing)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval for `share` of `count` instances.

    With the number of instances and not of rollouts it holds for what other instances of the kind
    would give, and is never too narrow: a mean over seeds varies less than a single one.
    """
    spread = Z_95**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = Z_95 * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
