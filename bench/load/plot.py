"""The picture of a run: CPU of a turn, by contender and number of concurrent rollouts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bench.load.headline import FLOOR, LATENCY_MS, LITELLM, OURS, THIN, VERIFIERS

COLORS = {
    OURS: "tab:blue",
    FLOOR: "black",
    THIN: "tab:red",
    LITELLM: "tab:orange",
    VERIFIERS: "tab:green",
}


def draw(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, column, title in (
        (left, "cpu_ms", "CPU of the agents' process, ms per turn"),
        (right, "rollouts_per_s", "rollouts per second"),
    ):
        for who, color in COLORS.items():
            points = [
                (int(str(row["at_once"])), float(str(row[column])))
                for row in rows
                if row["who"] == who and row["latency_ms"] == LATENCY_MS and row[column] is not None
            ]
            axes.plot(*zip(*points, strict=True), marker="o", label=who, color=color)
        axes.set_title(title)
        axes.set_xlabel("rollouts at once")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(fontsize=8)
    figure.savefig(path, dpi=120)
