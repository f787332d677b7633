"""What all pictures of measurements share: size, type, colours, and labels in place of legends."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

Result = Mapping[str, Any]
"""A file of bench/results, read."""

OURS, OTHERS, ACCENT, PALE = "#0860c4", "#6e7781", "#c4520a", "#b9d3ef"
TEXT = 9.5
"""Points: 13 pixels where the picture is 720 wide."""
WIDTH_IN = 7.2
MARGIN_IN = 0.08
DPI = 160
FONT = {"font.size": TEXT, "axes.titlesize": TEXT, "axes.labelsize": TEXT}


def figure(height_in: float, title: str, note: str = "") -> Figure:
    """Returns an empty picture with its message above, and under it what is shown."""
    with rc_context(FONT):
        engine = ConstrainedLayoutEngine(w_pad=MARGIN_IN, h_pad=MARGIN_IN)
        made = Figure(figsize=(WIDTH_IN, height_in), layout=engine)
    made.suptitle(title, x=0.014, ha="left", fontsize=TEXT + 2.5, fontweight="bold")
    if note:
        made.supxlabel(note, x=0.014, ha="left", fontsize=TEXT, color="0.3")
    return made


def clean(axes: Axes, title: str = "") -> None:
    """Leaves of the frame what is read; a title stands at the left."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=TEXT)
    axes.xaxis.label.set_fontsize(TEXT)
    axes.set_axisbelow(True)
    if title:
        axes.set_title(title, loc="left", fontsize=TEXT)


def names(axes: Axes, rows: Sequence[str]) -> None:
    """Names rows at the left, the first on top; those of ours are blue."""
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    for label in axes.get_yticklabels():
        if label.get_text().startswith("ours"):
            label.set_color(OURS)


def label(
    axes: Axes, at: tuple[float, float], text: str, color: str, offset: tuple[float, float] = (6, 0)
) -> None:
    """Writes at a point, `offset` points beside it; over or under it without one to the side."""
    side = offset[0]
    axes.annotate(
        text,
        at,
        offset,
        textcoords="offset points",
        va="center",
        ha="left" if side > 0 else "right" if side else "center",
        color=color,
        fontsize=TEXT,
        annotation_clip=False,
    )


def dots(axes: Axes, values: Sequence[float], colors: Sequence[str], unit: str = "") -> None:
    """Draws a dot for each row, on a log scale, with its value."""
    for row, (value, color) in enumerate(zip(values, colors, strict=True)):
        axes.plot(value, row, "o", color=color, markersize=7)
        label(axes, (value, row), f"{amount(value)}{unit}", color, (8, 0))
    log(axes)


def log(axes: Axes) -> None:
    """Gives the x axis a log scale, with plain numbers: 0.1, 1, 10."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="x", alpha=0.25)


def percent(axes: Axes) -> None:
    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(axis="y", alpha=0.25)


def amount(value: float) -> str:
    """Returns a number with three digits, or all that are before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
