"""The picture: how busy the slots are by the number of services, as run and as simulated."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Row = Mapping[str, object]


def draw(measured: Sequence[Row], simulated: Sequence[Row], path: Path) -> None:
    figure = Figure(figsize=(9, 4), layout="constrained")
    run, larger = figure.subplots(1, 2, sharey=True, width_ratios=(2, 3))
    _run(run, [row for row in measured if _number(row, "call_s") > 1])
    _compared(run, [row for row in simulated if "error" in row and _number(row, "call_s") > 1])
    clusters = [row for row in simulated if str(row.get("rollouts", "")).startswith("SWE")]
    for design in dict.fromkeys(str(row["design"]) for row in clusters):
        _line(larger, design, [row for row in clusters if row["design"] == design])
    run.set(ylabel="share of slots at work", title="run on one machine")
    larger.set(title="simulated: 64 slots each, SWE rollouts of 600 s and 32k tokens")
    for axes in (run, larger):
        axes.set(xscale="log", ylim=(0, 1.08), xlabel="services")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("One front keeps services busy; higher is better", x=0.01, ha="left")
    figure.savefig(path, dpi=120)


def _run(axes: Axes, rows: Sequence[Row]) -> None:
    counts = [_number(row, "services") for row in rows]
    axes.plot(counts, [_number(row, "busy") for row in rows], "o", color="tab:blue", label="run")
    axes.set_xticks(counts, [f"{count:.0f}" for count in counts], minor=False)
    axes.minorticks_off()


def _compared(axes: Axes, rows: Sequence[Row]) -> None:
    counts = [_number(row, "services") for row in rows]
    simulated = [_number(row, "busy_simulated") for row in rows]
    axes.plot(counts, simulated, "--", color="0.5", label="simulated", zorder=0)
    axes.legend(loc="lower left", frameon=False)


def _line(axes: Axes, design: str, rows: Sequence[Row]) -> None:
    counts = [_number(row, "services") for row in rows]
    busy = [_number(row, "busy") for row in rows]
    (line,) = axes.plot(counts, busy, "o-")
    axes.annotate(
        design,
        (counts[-1], busy[-1]),
        (0, 6),
        textcoords="offset points",
        ha="right",
        color=line.get_color(),
        fontsize=9,
    )


def _number(row: Row, column: str) -> float:
    return float(str(row[column]))
