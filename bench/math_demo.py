"""Mathematics from nothing, with the recipe's own commands: how much the tiny model learns.

Warm start, score on held-out problems, training with TRL's stock trainer, the score again. Also
draws bench/results/math_demo.png.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from bench import result
from bench.plots.drawing import redraw
from recipes.math_code.offline.math import problems
from recipes.math_code.rows import write_rows

STEPS = 80
HELDOUT = 200
SEEDS = 2
"""Seeds of each held-out problem."""


@dataclass(frozen=True, slots=True)
class Run:
    """`before`, `after`: score.json. `curve`: a line per step. `train_s`: of the whole command."""

    before: dict[str, Any]
    after: dict[str, Any]
    curve: list[dict[str, Any]]
    train_s: float

    def row(self, when: Literal["before", "after"]) -> dict[str, object]:
        result = self.before if when == "before" else self.after
        scored, pass_at_2 = result["score"], result["pass_at_k"]["2"]
        return {
            "training": when,
            "problems": scored["instances"],
            "pass@1": round(scored["pass_at_1"], 4),
            "from": round(scored["low"], 4),
            "to": round(scored["high"], 4),
            "pass@2": round(pass_at_2["share"], 4),
        }

    def headline(self) -> dict[str, object]:
        return {
            "heldout_success_before": round(self.before["score"]["pass_at_1"], 4),
            "heldout_success_after": round(self.after["score"]["pass_at_1"], 4),
            "steps": len(self.curve),
            "train_minutes": round(self.train_s / 60, 2),
        }


def run(directory: Path, steps: int) -> Run:
    trained = directory / "train"
    before = score(directory, "before")
    started = time.monotonic()
    command(directory, "train", f"output={trained}", f"steps={steps}", "trainer=trl")
    train_s = time.monotonic() - started
    after = score(directory, "after", f"model.path={trained / 'model'}", "model.warm_start=null")
    lines = (trained / "progress.jsonl").read_text().splitlines()
    return Run(before, after, [json.loads(line) for line in lines], train_s)


def score(directory: Path, name: str, *overrides: str) -> dict[str, Any]:
    output = directory / name
    seeds = (f"seeds={SEEDS}", f"pass_at_k=[{SEEDS}]")
    command(directory, "evaluate", f"output={output}", *seeds, *overrides)
    scored: dict[str, Any] = json.loads((output / "score.json").read_text())
    return scored


def command(directory: Path, module: Literal["train", "evaluate"], *overrides: str) -> None:
    """Runs a module on the problems of its split, with its cache in `directory`, too."""
    rows = directory / f"{module}.jsonl"
    write_rows(rows, problems("train") if module == "train" else problems("heldout")[:HELDOUT])
    given = ["task=math", "model=tiny", f"data.rows={rows}", *overrides]
    subprocess.run(
        [sys.executable, "-m", f"recipes.math_code.{module}", *given],
        env={**os.environ, "PRORL_CACHE": str(directory / "cache")},
        check=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three steps, as a check")
    quick = parser.parse_args().quick
    with TemporaryDirectory(prefix="prorl-bench-") as directory:
        Path(directory).chmod(0o755)  # it has the cache, which sandboxes open as another user
        done = run(Path(directory), 3 if quick else STEPS)
    if not quick:
        rows = [done.row("before"), done.row("after")]
        series = {"success": [step["mean_reward"] for step in done.curve]}
        result.write("math_demo", rows, done.headline(), series=series)
        redraw("math_demo")


if __name__ == "__main__":
    main()
