"""Groups per second without each optimisation, as a share of those with all."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.ablation.rows import ALL, ALL_SLOW
from bench.plots import style

Line = Mapping[str, object]


def draw(result: style.Result) -> Figure:
    lines = [one for one in result["rows"] if one.get("ratio") is not None]
    shown = [one for one in lines if one["row"] not in (ALL, ALL_SLOW)]
    shown.sort(key=lambda one: _number(one, "ratio"))
    note = (
        "Informative groups per second, as a share of those with all. Lines: 95 %.\n"
        "Diamonds: ProRL Agent's own table. Further left: it matters more."
    )
    made = style.figure(0.36 * len(shown) + 1.3, "Each optimisation, switched off alone", note)
    axes = made.subplots()
    for place, one in enumerate(shown):
        _row(axes, place, one)
    axes.axvline(1, color="0.4", linewidth=1)
    style.label(axes, (1, -0.75), "with all", "0.3", (-20, 0))
    style.names(axes, [str(one["row"]) for one in shown])
    axes.set_ylim(len(shown) - 0.4, -1.1)
    axes.set_xlim(0, max(_number(one, "high") for one in shown) * 1.15)
    axes.grid(axis="x", alpha=0.25)
    style.clean(axes)
    return made


def _row(axes: Axes, place: int, one: Line) -> None:
    ratio, low, high = (_number(one, column) for column in ("ratio", "low", "high"))
    axes.plot([low, high], [place, place], color=style.OURS, linewidth=1.4)
    axes.plot(ratio, place, "o", color=style.OURS, markersize=7)
    style.label(axes, (ratio, place), f"{ratio:.2f}", style.OURS, (0, 10))
    if one["paper"] is not None:
        paper = _number(one, "paper")
        axes.plot(paper, place, "D", color=style.ACCENT, markersize=6)
        style.label(axes, (max(paper, high), place), f"paper {paper:.2f}", style.ACCENT, (8, 0))


def _number(line: Line, column: str) -> float:
    return float(str(line[column]))
