"""The demo over three seeds: how much an agent learns through the service, and how fast.

The headline is the run of the first seed, which is what `make demo` does; rows hold all runs.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import frame

SEEDS = (0, 1, 2)


def summary(output: Path, *options: str) -> dict[str, Any]:
    """Runs the demo with these options; returns what it writes. Not if it is there already."""
    file = output / "summary.json"
    if not file.exists():
        command = [sys.executable, "-m", "recipes.demo", "--output", str(output), *options]
        subprocess.run(command, check=True)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def measure(quick: bool) -> frame.Found:
    with TemporaryDirectory() as name:
        few = ("--steps", "2") if quick else ()
        summaries = {
            seed: summary(Path(name) / str(seed), "--seed", str(seed), *few)
            for seed in (SEEDS[:1] if quick else SEEDS)
        }
    return frame.Found(
        [{"seed": seed, **one["headline"]} for seed, one in summaries.items()],
        summaries[SEEDS[0]]["headline"],
        {"success": [[step["success"] for step in one["curve"]] for one in summaries.values()]},
    )


if __name__ == "__main__":
    frame.run("demo", {"demo": measure})
