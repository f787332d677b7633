"""Pass@1 and pass@k over seeds, with intervals. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from prorl_service.schemas import numbers

Z_95 = 1.959963984540054
RESAMPLES = 10_000


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
    """Scores `solved`: the verdict of each seed, or None, keyed by instance. Raises `ValueError` if
    there are no instances, or if they differ in the number of seeds."""
    [seeds] = {len(one) for one in solved.values()}
    per_seed = [fmean(bool(one[seed]) for one in solved.values()) for seed in range(seeds)]
    pass_at_1 = fmean(per_seed)
    low, high = wilson(pass_at_1, len(solved))
    missing = sum(verdict is None for one in solved.values() for verdict in one)
    return Score(len(solved), seeds, per_seed, pass_at_1, low, high, missing)


@dataclass(frozen=True, slots=True)
class Share:
    """A share from 0 to 1, with the ends of its 95 % interval."""

    share: float
    low: float
    high: float


def pass_at_k(solved: Mapping[str, Sequence[bool | None]], k: int) -> Share:
    """Returns the mean over instances of the chance that one of `k` rollouts solves the instance,
    estimated without bias from all of them (Chen et al. 2021, arXiv 2107.03374); for `solved` see
    `score`.

    The interval is the bootstrap's over instances (percentiles of `RESAMPLES` means): no closed
    form is known for a mean of such shares. It is too narrow for few instances.
    """
    values = [numbers.pass_at_k(len(one), sum(map(bool, one)), k) for one in solved.values()]
    distinct, counts = np.unique(values, return_counts=True)
    generator = np.random.default_rng(0)
    drawn = generator.multinomial(len(values), counts / len(values), size=RESAMPLES)
    low, high = np.quantile(drawn @ distinct / len(values), [0.025, 0.975])
    return Share(fmean(values), float(low), float(high))


def wilson(share: float, count: int) -> tuple[float, float]:
    """Returns Wilson's 95 % interval for `share` of `count` instances.

    Since it counts instances, not rollouts, the interval holds for other instances of the kind. It
    is never too narrow: a mean over seeds varies less than a single seed.
    """
    spread = Z_95**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = Z_95 * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
