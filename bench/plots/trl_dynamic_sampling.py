"""Success over the time of training, with dynamic sampling and without."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.plots import style

LABELS = {True: ("with dynamic sampling", style.OURS), False: ("without", style.OTHERS)}
GOAL = 0.8


def draw(result: style.Result) -> Figure:
    rows = result["rows"]
    title = "Where rollouts cost little, dynamic sampling saves no time"
    seeds = len({row["seed"] for row in rows})
    note = f"Success on held-out tasks of the demo, {seeds} seeds. Higher and earlier is better."
    made = style.figure(3.9, title, note)
    axes = made.subplots()
    for dynamic in (False, True):
        _runs(axes, [row for row in rows if row["dynamic"] is dynamic], *LABELS[dynamic])
    axes.axhline(GOAL, color="0.6", linewidth=0.8, linestyle=":")
    axes.set_xlabel("seconds of training", loc="left")
    axes.set_xlim(0, max(row["train_s"] for row in rows) * 1.02)
    style.percent(axes)
    style.clean(axes)
    return made


def _runs(axes: Axes, rows: Sequence[dict[str, Any]], name: str, color: str) -> None:
    for row in rows:
        axes.plot(*zip(*row["curve"], strict=True), color=color, alpha=0.35, linewidth=1)
    points = [
        [median(row["curve"][at][axis] for row in rows) for axis in (0, 1)]
        for at in range(min(len(row["curve"]) for row in rows))
    ]
    axes.plot(*zip(*points, strict=True), color=color, marker="o", markersize=4, linewidth=2.2)
    goal = median(row[f"seconds_to_{GOAL:g}"] for row in rows)
    dynamic = name != LABELS[False][0]
    text = f"{name}:\n80 % after {goal:.0f} s, the same\nsteps take {points[-1][0]:.0f} s"
    place = (135, 0.62) if dynamic else (135, 0.3)
    axes.text(*place, text, color=color, fontsize=style.TEXT, va="center")
