"""The chance that one of k rollouts of a task solves it. Pure."""

import math


def chance(rollouts: int, solved: int, k: int) -> float:
    """Returns the chance for `k` of these rollouts, of which some solved the task: the unbiased
    estimate of Chen et al. 2021 (arXiv 2107.03374)."""
    return 1.0 - math.comb(rollouts - solved, k) / math.comb(rollouts, k)
