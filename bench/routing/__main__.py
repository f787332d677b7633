"""How long groups take by the router that gives their calls to simulated engines. Ten minutes.

The router was tuned on seeds 0 to 9 of the simulator; the seeds here are others. A row's `mean_s`
and `p90_s` are of the groups of a run, averaged over all runs, in which each policy has the same
work. `ours_to_this` is the mean of ours over this policy's `mean_s`, run by run, and `error` its
standard error. The ratio of the headline is ours over theirs: below 1, ours is faster.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import sqrt
from statistics import fmean, stdev

from bench import frame
from bench.ablation.routers import ConsistentHash, MinHeap, RoundRobin
from bench.routing import simulate
from bench.routing.simulate import SCENARIOS, Run
from prorl_service.inference.routing import LeastExpectedTime, Router

OURS, MIN_HEAP = "ours", "min-heap of task counts"
POLICIES: dict[str, Callable[[], Router]] = {
    OURS: LeastExpectedTime,
    MIN_HEAP: MinHeap,
    "consistent hash": ConsistentHash,
    "round robin": RoundRobin,
}
FIRST_SEED, SEEDS, QUICK_SEEDS = 100, 40, 2


def measure(quick: bool) -> frame.Found:
    seeds = range(FIRST_SEED, FIRST_SEED + (QUICK_SEEDS if quick else SEEDS))
    keys = [(scenario, policy) for scenario in SCENARIOS for policy in POLICIES]
    jobs = [(scenario, policy, seed) for scenario, policy in keys for seed in seeds]
    with ProcessPoolExecutor() as workers:
        done = iter(list(workers.map(_simulate, *zip(*jobs, strict=True))))
    table = rows({key: [next(done) for _ in seeds] for key in keys})
    return frame.Found(table, headline(table))


def _simulate(scenario: str, policy: str, seed: int) -> Run:
    return simulate.run(POLICIES[policy](), simulate.engines_of(scenario), seed)


def rows(runs: Mapping[tuple[str, str], Sequence[Run]]) -> list[frame.Row]:
    """`runs`: keyed by scenario and policy, in the same order of workloads."""
    made = []
    for (scenario, policy), these in runs.items():
        means, ours = ([run.mean_s for run in own] for own in (these, runs[scenario, OURS]))
        ratios = frame.ratios(ours, means)
        error = stdev(ratios) / sqrt(len(ratios)) if len(ratios) > 1 else None
        made.append(
            {
                "where": "simulator",
                "scenario": scenario,
                "policy": policy,
                "runs": len(these),
                "mean_s": round(fmean(means), 3),
                "p90_s": round(fmean(run.p90_s for run in these), 3),
                "ours_to_this": round(fmean(ratios), 4),
                "error": error and round(error, 4),
                "moves": round(fmean(run.moves for run in these), 1),
            }
        )
    return made


def headline(table: Sequence[frame.Row]) -> frame.Row:
    worst = 0.0
    for scenario in {row["scenario"] for row in table}:
        for figure in ("mean_s", "p90_s"):
            ours, *others = (row[figure] for row in table if row["scenario"] == scenario)
            worst = max(worst, ours / min(others))
    return {"worst_ratio_to_best_other": round(worst, 4)}


if __name__ == "__main__":
    frame.run("routing", {"routing": measure})
