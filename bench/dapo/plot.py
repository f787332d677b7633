"""The picture of a run: how many of RUN's workers are at work, over time, for each contender."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from bench.dapo.contenders import OURS
from bench.dapo.training import Run


def draw(runs: Mapping[str, Run], path: Path) -> None:
    """Draws a graph for each run; pauses for training are grey."""
    figure = Figure(figsize=(9, 1.2 * len(runs) + 0.6), layout="constrained")
    all_axes = figure.subplots(len(runs), 1, sharex=True, sharey=True)
    for axes, (name, run) in zip(all_axes, runs.items(), strict=True):
        times, busy = zip(*run.busy, strict=True)
        color = "tab:blue" if name.startswith(OURS) else "tab:gray"
        axes.fill_between(times, busy, step="post", color=color)
        for start, end in run.pauses:
            axes.axvspan(start, end, color="black", alpha=0.12, linewidth=0)
        axes.set_title(f"{name}: {len(run.given)} groups in {run.wall_s:.0f} s", fontsize=9)
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 1], ["0", "all"])
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[-1].set_xlabel("seconds; area: RUN's workers at work; shaded: the trainer trains")
    figure.savefig(path, dpi=120)
