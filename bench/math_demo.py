"""Mathematics from nothing, by the recipe's own commands: how much the tiny model learns.

Warm start, score on held-out problems, training with TRL's stock trainer, the score again. Also
draws bench/results/math_demo.png.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import result
from recipes.common.splits import Split
from recipes.demo.report import Step, write_curve
from recipes.math_code.offline.math import problems
from recipes.math_code.rows import write_rows

STEPS = 80
HELDOUT = 200
SEEDS = 2
"""Of each held-out problem."""
LOGPROB_GAP = "sampling/sampling_logp_difference/max"


@dataclass(frozen=True, slots=True)
class Run:
    """`before`, `after`: score.json. `curve`: a line a step. `train_s`: from command to end."""

    before: dict[str, Any]
    after: dict[str, Any]
    curve: list[dict[str, Any]]
    train_s: float

    def row(self, when: str) -> dict[str, object]:
        scored = (self.before if when == "before" else self.after)["score"]
        pass_at_2 = (self.before if when == "before" else self.after)["pass_at_k"]["2"]
        return {
            "training": when,
            "problems": scored["instances"],
            "pass@1": scored["pass_at_1"],
            "from": scored["low"],
            "to": scored["high"],
            "pass@2": pass_at_2["share"],
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
    command("train", *rows(directory, "train"), f"output={trained}", f"steps={steps}")
    train_s = time.monotonic() - started
    after = score(directory, "after", f"model.path={trained / 'model'}", "model.warm_start=null")
    lines = (trained / "progress.jsonl").read_text().splitlines()
    return Run(before, after, [json.loads(line) for line in lines], train_s)


def score(directory: Path, name: str, *overrides: str) -> dict[str, Any]:
    output = directory / name
    seeds = (f"seeds={SEEDS}", f"pass_at_k=[{SEEDS}]")
    command("evaluate", *rows(directory, "heldout"), f"output={output}", *seeds, *overrides)
    scored: dict[str, Any] = json.loads((output / "score.json").read_text())
    return scored


def rows(directory: Path, split: Split) -> Sequence[str]:
    """As an override."""
    path = directory / f"{split}.jsonl"
    write_rows(path, problems(split)[: HELDOUT if split == "heldout" else None])
    return [f"data.rows={path}"]


def command(module: str, *overrides: str) -> None:
    own = ["task=math", "model=tiny", *(["trainer=trl"] if module == "train" else [])]
    arguments = ["-m", f"recipes.math_code.{module}", *own, *overrides]
    subprocess.run([sys.executable, *arguments], check=True)


def draw(done: Run) -> None:
    curve = [Step(one["step"], one["mean_reward"], one["trained_on"], 0.0) for one in done.curve]
    write_curve(
        result.RESULTS / "math_demo.png",
        curve,
        before=done.before["score"]["pass_at_1"],
        after=done.after["score"]["pass_at_1"],
        title="A tiny agent learns which calculation a story asks for",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three steps: that it runs")
    quick = parser.parse_args().quick
    with TemporaryDirectory(prefix="prorl-bench-") as directory:
        done = run(Path(directory), 3 if quick else STEPS)
    if not quick:
        draw(done)
        result.write("math_demo", [done.row("before"), done.row("after")], done.headline())


if __name__ == "__main__":
    main()
