"""What each optimisation is worth: the same training draws with all, and with one switched off.

The whole takes 90 minutes; nothing else may run on the machine meanwhile. A run in which the
processes together used more than 70 % of the cores, or others more than one core, is invalid: that
is said, and nothing is written. `--quick` checks in a minute or two that no row is faster without
its optimisation.

Modelled are the engines (`engine`), the wall of EVAL, which is slept, and the delay of tmux, which
is measured first (`actions`) and then slept; all else is real: service, HTTP, sampler, sandboxes,
commands.
"""

import asyncio
import sys
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import frame
from bench.ablation import actions, rows, running, table
from bench.ablation.rows import Row
from bench.ablation.running import Fleet, Run
from bench.ablation.workload import Size
from prorl_service.inference.reference_engine.tiny import build_tiny_model

SEEDS = 5
VOCAB_SIZE = 1024
QUICK = Size(slots=24, eval_workers=64, groups_at_once=16, target=4, n=4, draws=3, pace=0.4)


def measure(quick: bool) -> frame.Found:
    """Exits for a row with the wrong sign, and for invalid runs of a whole measurement."""
    times = asyncio.run(actions.measure(actions.QUICK if quick else actions.FULL))
    wanted = rows.QUICK if quick else rows.ROWS
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        model = Path(name) / "model"
        build_tiny_model(model, vocab_size=VOCAB_SIZE)
        with running.fleet(model) as engines:

            def run(row: Row, engines: Fleet, seed: int) -> Run:
                size, log = QUICK if quick else Size(), Path(name) / "service.log"
                return running.run(row, seed + 1, size, engines, times[actions.TMUX], log)

            turns = {row.name: partial(run, row, engines) for row in wanted}
            runs = frame.alternate(turns, 1 if quick else SEEDS)
    wrong = [f"wrong sign: {text}" for text in table.wrong_signs(wanted, runs)]
    if not quick:
        wrong += table.problems(runs)
    if wrong:
        sys.exit("\n".join(["not a result:", *wrong]))
    lines = [table.line(row, runs) for row in wanted]
    took = {"action_ms": actions.BASH, "action_ms_tmux": actions.TMUX}
    headline = {name: round(median(times[what]), 3) for name, what in took.items()}
    measured = [actions.row(what, ms) for what, ms in times.items()]
    return frame.Found([*lines, *measured], headline | ({} if quick else table.headline(lines)))


if __name__ == "__main__":
    frame.run("ablation", {"ablation": measure})
