"""What each optimisation is worth: the same training draws with all, and with one switched off.

The whole takes 90 minutes; nothing else may run on the machine meanwhile. A run in which the
processes together used more than 70 % of the cores, or others more than one core, is invalid: that
is said, and nothing is written. `--quick` checks in a minute or two that no row is faster without
its optimisation.

Modelled are the engines (`model`), the wall of EVAL and the delay of tmux, as `bench.tools` has
measured it; both are slept. All else is real: service, HTTP, sampler, sandboxes, commands.
"""

import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import frame
from bench.ablation import rows, running, table
from bench.ablation.rows import Row
from bench.ablation.running import Run
from bench.ablation.workload import Size
from bench.tools.bash import POLLED
from prorl_service.inference.reference_engine.tiny import build_tiny_model

SEEDS = 5
VOCAB_SIZE = 1024
QUICK = Size(slots=24, eval_workers=64, groups_at_once=16, target=4, n=4, draws=3, pace=0.4)


def measure(quick: bool) -> frame.Found:
    """Exits for a row with the wrong sign, and for invalid runs of a whole measurement."""
    tmux = frame.find(frame.written("tools")["rows"], part="bash", who=POLLED, what="true")
    wanted = rows.QUICK if quick else rows.ROWS
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        model = Path(name) / "model"
        build_tiny_model(model, vocab_size=VOCAB_SIZE)
        with running.fleet(model) as engines:

            def run(row: Row, engines: list[str], seed: int) -> Run:
                size, log = QUICK if quick else Size(), Path(name) / "service.log"
                return running.run(row, seed + 1, size, engines, tmux["p50_ms"] / 1e3, log)

            turns = {row.name: partial(run, row, engines) for row in wanted}
            runs = frame.alternate(turns, 1 if quick else SEEDS)
    wrong = [f"wrong sign: {text}" for text in table.wrong_signs(wanted, runs)]
    if not quick:
        wrong += table.problems(runs)
    if wrong:
        sys.exit("\n".join(["not a result:", *wrong]))
    lines = [table.line(row, runs) for row in wanted]
    return frame.Found(lines, {} if quick else table.headline(lines))


if __name__ == "__main__":
    frame.run("ablation", {"ablation": measure})
