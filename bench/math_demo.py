"""Mathematics from nothing, with the recipe's own commands: how much the tiny model learns.

Warm start, score on held-out problems, training with TRL's stock trainer, the score again.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from bench import frame
from recipes.math_code.offline.math import problems
from recipes.math_code.rows import write_rows

STEPS = 80
HELDOUT, SEEDS = 200, 2
"""Held-out problems, and seeds of each."""


def row(when: str, score: dict[str, Any]) -> frame.Row:
    scored, pass_at_2 = score["score"], score["pass_at_k"]["2"]
    return {
        "training": when,
        "problems": scored["instances"],
        "pass@1": round(scored["pass_at_1"], 4),
        "from": round(scored["low"], 4),
        "to": round(scored["high"], 4),
        "pass@2": round(pass_at_2["share"], 4),
    }


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


def measure(quick: bool) -> frame.Found:
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # it has the cache, which sandboxes open as another user
        trained = directory / "train"
        before = row("before", score(directory, "before"))
        started = time.monotonic()
        steps = f"steps={3 if quick else STEPS}"
        command(directory, "train", f"output={trained}", steps, "trainer=trl")
        train_s = time.monotonic() - started
        policy = (f"model.path={trained / 'model'}", "model.warm_start=null")
        after = row("after", score(directory, "after", *policy))
        lines = (trained / "progress.jsonl").read_text().splitlines()
    headline = {
        "heldout_success_before": before["pass@1"],
        "heldout_success_after": after["pass@1"],
        "steps": len(lines),
        "train_minutes": round(train_s / 60, 2),
    }
    curve = [json.loads(line)["mean_reward"] for line in lines]
    return frame.Found([before, after], headline, {"success": curve})


if __name__ == "__main__":
    frame.run("math_demo", {"math_demo": measure})
