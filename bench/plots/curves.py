"""Curves of success over steps of training, with the held-out success at both ends."""

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes

from bench.plots import style
from recipes.demo.report import smooth

STEPS = "training step"


def curve(
    axes: Axes, runs: Sequence[Sequence[float]], ends: Sequence[tuple[float, float]], color: str
) -> None:
    """Draws the mean of runs, each smoothed, with a band over them, and the means of `ends`: the
    held-out success of each before and after."""
    smoothed = [smooth(run) for run in runs]
    steps = range(1, min(map(len, smoothed)) + 1)
    columns = list(zip(*smoothed, strict=False))
    if len(runs) > 1:
        low, high = [min(one) for one in columns], [max(one) for one in columns]
        axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
    axes.plot(steps, [fmean(one) for one in columns], color=color, linewidth=2.2)
    before, after = (fmean(end[at] for end in ends) for at in (0, 1))
    axes.plot(
        [0, steps[-1]], [before, after], "o", color=color, markersize=7, clip_on=False, zorder=5
    )


def label_end(
    axes: Axes, step: float, value: float, name: str, color: str, shift: float = 0
) -> None:
    style.label(axes, (step, value), f"{name} {value:.0%}".strip(), color, (9, shift))


def finish(axes: Axes, steps: float, room: float) -> None:
    """Sets the axes: `room` is left for labels behind the last of `steps`, as a share of them."""
    axes.set_xlim(0, steps * (1 + room))
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= steps])
    axes.spines["bottom"].set_bounds(0, steps)
    axes.set_xlabel(STEPS, loc="left")
    style.percent(axes)
    style.clean(axes)
