"""The demo over three seeds: how much an agent learns through the service, and how fast.

The headline is the run of the first seed, which is what `make demo` does; rows hold all runs. Also
draws bench/results/demo.png.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import result
from bench.plots.drawing import redraw

SEEDS = (0, 1, 2)


def run(seed: int, output: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "recipes.demo", "--seed", str(seed), "--output", str(output)]
    subprocess.run(command, check=True)
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return summary


def main() -> None:
    with TemporaryDirectory() as directory:
        summaries = {seed: run(seed, Path(directory) / str(seed)) for seed in SEEDS}
    rows = [{"seed": seed, **summary["headline"]} for seed, summary in summaries.items()]
    success = [[step["success"] for step in one["curve"]] for one in summaries.values()]
    result.write("demo", rows, summaries[SEEDS[0]]["headline"], series={"success": success})
    redraw("demo")


if __name__ == "__main__":
    main()
