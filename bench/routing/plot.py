"""The picture of a run: how long groups take by scenario and policy, simulated and for real."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from bench.routing.contenders import POLICIES
from bench.routing.headline import Row

COLORS = ("tab:blue", "0.35", "0.55", "0.75")
WIDTH = 0.2


def draw(rows: Sequence[Row], path: Path) -> None:
    places = list(dict.fromkeys(row["where"] for row in rows))
    figure = Figure(figsize=(9, 3.6 * len(places)), layout="constrained")
    for where, axes in zip(places, figure.subplots(len(places), squeeze=False)[:, 0], strict=True):
        _bars(axes, [row for row in rows if row["where"] == where])
        axes.set_title(f"Time of a group: {where}")
    figure.savefig(path, dpi=120)


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    scenarios = list(dict.fromkeys(str(row["scenario"]) for row in rows))
    for number, (policy, color) in enumerate(zip(POLICIES, COLORS, strict=True)):
        these = [row for row in rows if row["policy"] == policy]
        at = [scenarios.index(str(row["scenario"])) + (number - 1.5) * WIDTH for row in these]
        means = [float(str(row["mean_s"])) for row in these]
        bars = axes.bar(at, means, WIDTH * 0.9, color=color, label=policy)
        seconds = [f"{mean:.0f}" if mean >= 100 else f"{mean:.3g}" for mean in means]
        axes.bar_label(bars, seconds, fontsize=7, padding=1)
        tails = [float(str(row["p90_s"])) for row in these]
        label = "p90" if number == len(POLICIES) - 1 else None
        axes.plot(at, tails, "_", color="tab:red", markersize=12, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("seconds, mean, log scale")
    axes.set_xticks(range(len(scenarios)), scenarios)
    axes.margins(y=0.15)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, ncols=5, loc="upper right")
