"""The picture of a run: what one shell command costs, and what one start costs."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.tools.timing import Row

OURS, OTHERS = "tab:blue", "tab:gray"


def draw(rows: Sequence[Row], path: Path) -> None:
    figure = Figure(figsize=(9, 7.5), layout="constrained")
    top, bottom = figure.subplots(2, 1)
    _bars(top, [row for row in rows if row["part"] == "bash" and row["what"] == "true"])
    top.set_title("One shell command (true)")
    _bars(bottom, [row for row in rows if row["part"] == "start" and row["at_once"] == 1])
    bottom.set_title("One start")
    figure.savefig(path, dpi=120)


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    """Draws the bars, the slowest first."""
    figures = sorted((float(str(row["p50_ms"])), str(row["who"])) for row in rows)
    times = [time for time, _ in figures]
    names = [name for _, name in figures]
    colors = [OURS if name.startswith("ours") else OTHERS for name in names]
    axes.bar_label(axes.barh(names, times, color=colors), fmt=" %.3g", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("ms, p50, log scale")
    axes.margins(x=0.15)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
