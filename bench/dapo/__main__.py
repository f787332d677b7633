"""Gain of dynamic sampling as a service over batches, refilling and re-queueing. Six minutes.

A trainer draws T informative groups per step, trains, and loads weights. While it trains,
synchronous batches and re-queueing idle, surplus to be thrown away runs to its end, and the groups
that ours carries over continue; only in a row of its own are engines lent to training, which holds
all calls.

Figures of a row: `wasted`, `uninformative` and `left` are shares of the turns (model calls): of
groups that were cancelled, restarted or thrown away; of those that ended with all rewards equal; of
those in flight at the end of the run, which a longer one would have used. `groups_per_min` counts
all time, training too, and is what ratios are of. Rates are medians of the runs; all else is of all
runs together. `busy` is the share of RUN's workers at work, over all time; calls held while engines
are lent count as work. Staleness is the number of policy versions between the newest and a group's
oldest token when it was given. `turns_given` is the mean of the rollouts trained on: below that of
the batches, short ones are favoured. Ratios are medians over the seeds, to the better of the two
sizes of batches.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from bench import frame
from bench.dapo import training, workload
from bench.dapo.strategies import Batches, Fate, Refill, Service
from bench.dapo.training import Make, Run
from bench.dapo.workload import Plan
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import Group

SYNC = "synchronous, batches of T"
SYNC_3T = "synchronous, batches of 3T"
"""Size of the batches in verl's recipe of DAPO."""
REFILL = "refill, surplus thrown away"
REQUEUE = "refill, re-queue (ProRL Agent)"
LENT = "ours, engines lent to training"
OURS = "ours"
SEEDS = 3
Contender = Callable[[Plan, int, Iterator[Group]], Make]
CONTENDERS: dict[str, Contender] = {
    SYNC: lambda plan, _, tasks: lambda _, client: Batches(client, plan, tasks, plan.target),
    SYNC_3T: lambda plan, _, tasks: lambda _, client: Batches(client, plan, tasks, 3 * plan.target),
    REFILL: lambda plan, _, tasks: lambda _, client: Refill(client, plan, tasks, requeue=False),
    REQUEUE: lambda plan, _, tasks: lambda _, client: Refill(client, plan, tasks, requeue=True),
    LENT: lambda plan, seed, tasks: lambda url, _: Service(url, plan, tasks, seed, is_lent=True),
    OURS: lambda plan, seed, tasks: lambda url, _: Service(url, plan, tasks, seed, is_lent=False),
}
Runs = Mapping[str, Sequence[Run]]
"""Runs, keyed by contender, all in the same order of seeds."""


def measure(quick: bool) -> frame.Found:
    plan, seeds = (Plan(steps=2, target=4), 1) if quick else (Plan(), SEEDS)
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        build_tiny_model(Path(name) / "model")
        turns = {who: partial(_run, make, plan, Path(name)) for who, make in CONTENDERS.items()}
        runs = frame.alternate(turns, seeds)
    rows = [row(name, own) for name, own in runs.items()]
    return frame.Found(rows, headline(runs), {who: own[0].series() for who, own in runs.items()})


def _run(contender: Contender, plan: Plan, directory: Path, number: int) -> Run:
    seed = number + 1
    make = contender(plan, seed, workload.candidates(seed, plan.n))
    return asyncio.run(training.run(make, plan, directory / "model", directory / "service.log"))


def row(name: str, runs: Sequence[Run]) -> frame.Row:
    given = [group for run in runs for group in run.given]
    turns = sum((run.turns for run in runs), Counter[Fate]())
    shares = {fate.value: round(turns[fate] / turns.total(), 3) for fate in Fate}
    return {
        "who": name,
        "groups_per_min": round(median(map(_groups_per_min, runs)), 1),
        **{fate: share for fate, share in shares.items() if fate != Fate.GIVEN},
        "busy": round(fmean(busy for run in runs for _, busy in run.busy), 2),
        "staleness_max": max(group.staleness for group in given),
        "turns_given": round(
            sum(group.turns for group in given) / sum(group.rollouts for group in given), 2
        ),
    }


def _groups_per_min(run: Run) -> float:
    return 60 * len(run.given) / run.wall_s


def headline(runs: Runs) -> frame.Row:
    rates = {name: [*map(_groups_per_min, own)] for name, own in runs.items()}
    batches = [max(both) for both in zip(rates[SYNC], rates[SYNC_3T], strict=True)]
    others = {"sync": batches, "requeue": rates[REQUEUE]}
    return {
        f"informative_groups_per_min_vs_{name}": round(median(frame.ratios(rates[OURS], own)), 2)
        for name, own in others.items()
    }


if __name__ == "__main__":
    frame.run("dapo", {"dapo": measure})
