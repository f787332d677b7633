"""Routers side by side, simulated and on real engines: `python -m bench.routing [--quick]`.

Only a whole run leaves bench/results/routing.json and routing.png; it takes forty minutes.
The router was tuned on seeds 0 to 9 of the simulator; the seeds here are others. On the engines,
which share a machine, policies take turns within each repetition, each time with another one first.
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import uvloop

from bench import result
from bench.plots.drawing import redraw
from bench.routing import engines, headline, simulate
from bench.routing.contenders import POLICIES
from bench.routing.headline import Row, Run
from bench.routing.simulate import SCENARIOS

FIRST_SEED = 100

Runs = dict[tuple[str, str], list[Run]]


@dataclass(frozen=True, slots=True)
class Effort:
    seeds: int
    repetitions: int
    slow_repetitions: int
    """Repetitions with a slow engine: other policies take five times as long, far beyond noise."""
    groups: int


FULL = Effort(seeds=40, repetitions=10, slow_repetitions=3, groups=24)
QUICK = Effort(seeds=2, repetitions=1, slow_repetitions=1, groups=4)


def simulated(effort: Effort) -> list[Row]:
    seeds = range(FIRST_SEED, FIRST_SEED + effort.seeds)
    keys = [(scenario, policy) for scenario in SCENARIOS for policy in POLICIES]
    jobs = [(scenario, policy, seed) for scenario, policy in keys for seed in seeds]
    with ProcessPoolExecutor() as workers:
        done = iter(list(workers.map(_simulate, *zip(*jobs, strict=True))))
    runs = {key: [next(done) for _ in seeds] for key in keys}
    return headline.rows("simulator", runs)


def _simulate(scenario: str, policy: str, seed: int) -> Run:
    return simulate.run(POLICIES[policy](), simulate.engines_of(scenario), seed)


def measured(effort: Effort) -> list[Row]:
    runs: Runs = {(scenario, policy): [] for scenario in SCENARIOS for policy in POLICIES}
    policies = list(POLICIES)
    for repetition in range(effort.repetitions):
        first = repetition % len(policies)
        with engines.fleet() as fleet:
            for scenario in SCENARIOS:
                if scenario == "one slow" and repetition >= effort.slow_repetitions:
                    continue
                for policy in policies[first:] + policies[:first]:
                    run = _measure(fleet, scenario, policy, repetition, effort.groups)
                    runs[scenario, policy].append(run)
    return headline.rows("engines", runs)


def _measure(fleet: engines.Fleet, scenario: str, policy: str, repetition: int, groups: int) -> Run:
    if scenario == "one slow":
        groups //= 2
    work = engines.workload(FIRST_SEED + repetition, groups, f"{scenario}, {policy}")
    processes = fleet.prepare(scenario)
    run = uvloop.run(engines.run(POLICIES[policy](), processes, scenario, work))
    print(
        f"{scenario}, {policy}: mean {run.mean_s:.2f} s, p90 {run.p90_s:.2f} s,"
        f" {run.moves} moves (load {os.getloadavg()[0]:.1f})",
        flush=True,
    )
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little work, as a check")
    options = parser.parse_args()
    effort = QUICK if options.quick else FULL
    rows = [*simulated(effort), *measured(effort)]
    figures = headline.headline(rows)
    print(figures)
    if not options.quick:
        result.write("routing", rows, figures)
        redraw("routing")


if __name__ == "__main__":
    main()
