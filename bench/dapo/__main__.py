"""Measure all, or a little of all: `python -m bench.dapo [--quick]`.

A whole run leaves bench/results/dapo.json and dapo.png; it takes about six minutes.

A trainer draws T informative groups per step, trains, and loads weights. While it trains,
synchronous batches and re-queueing idle, surplus to be thrown away runs to its end, and the groups
that ours carries over continue; only in a row of its own are engines lent to training, which holds
all calls.

Figures of a row: `wasted`, `uninformative` and `left` are shares of the turns (model calls): of
groups that were cancelled, restarted or thrown away; of those that ended with all rewards equal; of
those in flight at the end of the run, which a longer one would have used. `groups_per_min` counts
all time, training too, and is what ratios are of; without pauses, turns made during them count all
the same. `busy` is the share of RUN's workers at work, over all time; calls held while engines are
lent count as work. Staleness is the number of policy versions between the newest and a group's
oldest token when it was given. `turns_given` is the mean of the rollouts trained on: below that of
the batches, short ones are favoured. `turn_ms` next to the mean latency of the engine shows how
much this machine was in the way.
"""

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import result
from bench.dapo import headline, training
from bench.dapo.contenders import CONTENDERS
from bench.dapo.training import Run
from bench.dapo.workload import Plan
from bench.plots.drawing import redraw
from prorl_service.inference.reference_engine.tiny import build_tiny_model

SEEDS = (1, 2, 3)


def run(plan: Plan, seeds: Sequence[int], directory: Path) -> dict[str, list[Run]]:
    model = directory / "model"
    build_tiny_model(model)
    runs = defaultdict[str, list[Run]](list)
    for seed in seeds:
        for name, contender in CONTENDERS.items():
            log = directory / "service.log"
            runs[name].append(asyncio.run(training.run(contender(plan, seed), plan, model, log)))
            row = headline.row(name, runs[name][-1:])
            print("  " + "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return dict(runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two steps, as a check")
    quick = parser.parse_args().quick
    started = time.monotonic()
    with TemporaryDirectory(prefix="prorl-bench-") as directory:
        plan, seeds = (Plan(steps=2, target=4), SEEDS[:1]) if quick else (Plan(), SEEDS)
        runs = run(plan, seeds, Path(directory))
    print(f"took {time.monotonic() - started:.0f} s", file=sys.stderr)
    if not quick:
        rows = [headline.row(name, own) for name, own in runs.items()]
        series = {name: own[0].series() for name, own in runs.items()}
        result.write("dapo", rows, headline.headline(runs), series=series)
        redraw("dapo")


if __name__ == "__main__":
    main()
