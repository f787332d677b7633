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

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bench import result
from recipes.demo.report import smooth

SEEDS = (0, 1, 2)


def run(seed: int, output: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "recipes.demo", "--seed", str(seed), "--output", str(output)]
    subprocess.run(command, check=True)
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return summary


def draw(summaries: dict[int, dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for seed, summary in summaries.items():
        steps = [point["step"] for point in summary["curve"]]
        success = smooth([point["success"] for point in summary["curve"]])
        (line,) = axes.plot(steps, success, linewidth=2, label=f"seed {seed}")
        headline = summary["headline"]
        ends = [headline["heldout_success_before"], headline["heldout_success_after"]]
        axes.plot([0, steps[-1]], ends, "o", color=line.get_color(), markersize=8)
    axes.set(xlabel="training step", ylabel="success", ylim=(0, 1.03))
    axes.set_title("Success on training tasks (lines) and held-out tasks (dots)")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    with TemporaryDirectory() as directory:
        summaries = {seed: run(seed, Path(directory) / str(seed)) for seed in SEEDS}
    rows = [{"seed": seed, **summary["headline"]} for seed, summary in summaries.items()]
    draw(summaries, result.RESULTS / "demo.png")
    result.write("demo", rows, summaries[SEEDS[0]]["headline"])


if __name__ == "__main__":
    main()
