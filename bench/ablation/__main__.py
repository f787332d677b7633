"""Measure all, or check a little: `python -m bench.ablation [--quick] [--seeds N]`.

A whole run leaves bench/results/ablation.json and ablation.png, and takes about 90 minutes; nothing
else may run on the machine meanwhile. A run in which the processes together used more than 70 % of
the cores, or others more than one core, is invalid: that is said, and nothing is written. `--quick`
checks in a minute or two that no row is faster without its optimisation.

Rows take turns within a seed, each time with another one first. Modelled are the engines
(`engine`), the wall of EVAL, which is slept, and the delay of tmux, which is measured first
(`actions`) and then slept; all else is real: service, HTTP, sampler, sandboxes, commands.
"""

import argparse
import asyncio
import os
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import result
from bench.ablation import actions, headline, rows, running
from bench.ablation.actions import TMUX, Times
from bench.ablation.rows import Row
from bench.ablation.running import Run
from bench.ablation.workload import Size
from bench.plots.drawing import redraw
from prorl_service.inference.reference_engine.tiny import build_tiny_model

SEEDS = 5
VOCAB_SIZE = 1024
QUICK = Size(slots=24, eval_workers=64, groups_at_once=16, target=4, n=4, draws=3, pace=0.4)


def run(
    table: Sequence[Row], seeds: int, size: Size, tmux_ms: list[float], directory: Path
) -> dict[str, list[Run]]:
    model = directory / "model"
    build_tiny_model(model, vocab_size=VOCAB_SIZE)
    runs = defaultdict[str, list[Run]](list)
    with running.fleet(model) as engines:
        for seed in range(1, seeds + 1):
            first = seed % len(table)
            for row in (*table[first:], *table[:first]):
                one = running.run(row, seed, size, engines, tmux_ms, directory / "service.log")
                runs[row.name].append(one)
                print(f"  seed {seed}  {_shown(row, one)}", flush=True)
    return dict(runs)


def _shown(row: Row, one: Run) -> str:
    quiet = one.quiet
    problem = f"  INVALID: {quiet.problem}" if quiet.problem else ""
    return (
        f"{row.name}: {one.groups_per_s:.3f} groups/s, {one.rollouts_per_s:.1f} rollouts/s, "
        f"engines busy {one.engine_busy:.2f}, tokens {one.token_share:.3f}, wasted "
        f"{one.wasted:.2f}, cores {quiet.cpu_share:.0%}, others {quiet.other_load:.2f}{problem}"
    )


def measure(quick: bool, seeds: int, directory: Path) -> int:
    """Returns the exit status: 1 for a row with the wrong sign, and for invalid runs of a whole
    measurement."""
    effort = actions.QUICK if quick else actions.FULL
    times = asyncio.run(actions.measure(effort, with_gateway=not quick))
    for one in times.values():
        print(f"  {one.row()}", flush=True)
    table, size = (rows.QUICK, QUICK) if quick else (rows.ROWS, Size())
    runs = run(table, seeds, size, times[TMUX].times_ms, directory)
    wrong = headline.wrong_signs(table, runs)
    for text in wrong:
        print(f"wrong sign: {text}", file=sys.stderr)
    if not quick:
        return _write(table, runs, times, is_whole=seeds >= SEEDS) or bool(wrong)
    return bool(wrong)


def _write(
    table: Sequence[Row], runs: dict[str, list[Run]], times: dict[str, Times], *, is_whole: bool
) -> int:
    lines = headline.table(table, runs)
    print("\n".join(f"  {line}" for line in lines))
    if problems := headline.problems(table, runs):
        print("not a result, since the machine was busy:", *problems, sep="\n  ", file=sys.stderr)
        return 1
    if is_whole:
        sockets = asyncio.run(actions.measure_sockets(actions.FULL))
        all_rows = [*lines, *(one.row() for one in times.values()), *sockets]
        result.write("ablation", all_rows, headline.headline(table, runs, times))
        redraw("ablation")
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="sign and order only, in a minute")
    parser.add_argument("--seeds", type=int, help=f"default: {SEEDS}; fewer are not written")
    options = parser.parse_args()
    started = time.monotonic()
    print(f"load of this machine before: {os.getloadavg()[0]:.1f}", flush=True)
    seeds = options.seeds or (1 if options.quick else SEEDS)
    with TemporaryDirectory(prefix="prorl-bench-") as directory:
        status = measure(options.quick, seeds, Path(directory))
    print(f"took {time.monotonic() - started:.0f} s", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
