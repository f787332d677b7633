"""The picture: groups per second without each optimisation, as a share of those with all."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.ablation.rows import ALL, ALL_SLOW

Line = Mapping[str, object]


def draw(lines: Sequence[Line], path: Path) -> None:
    shown = [one for one in lines if one["row"] not in (ALL, ALL_SLOW) and one["ratio"] is not None]
    shown.sort(key=lambda one: _number(one, "ratio"), reverse=True)
    figure = Figure(figsize=(9, 0.42 * len(shown) + 1.6), layout="constrained")
    axes = figure.subplots()
    _bars(axes, shown)
    for place, one in enumerate(shown):
        axes.text(0.01, place, f"{_number(one, 'ratio'):.2f}", va="center", fontsize=9)
        if one["paper"] is not None:
            _paper(axes, place, _number(one, "paper"))
    axes.axvline(1, color="black", linewidth=1)
    above = axes.get_xaxis_transform()
    axes.text(1, 1.01, "with all", ha="center", fontsize=9, transform=above)
    axes.set_yticks(range(len(shown)), [str(one["row"]) for one in shown])
    axes.set_xlim(0, 1.15)
    axes.set_xlabel("informative groups per second, as a share of those with all; lines: 95 %")
    axes.set_title("Each optimisation, switched off alone", loc="left", pad=16)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _bars(axes: Axes, shown: Sequence[Line]) -> None:
    ratios = [_number(one, "ratio") for one in shown]
    colors = ["tab:blue" if one["paper"] is not None else "0.7" for one in shown]
    errors = [
        [_number(one, "ratio") - _number(one, "low") for one in shown],
        [_number(one, "high") - _number(one, "ratio") for one in shown],
    ]
    axes.barh(
        range(len(shown)),
        ratios,
        height=0.7,
        color=colors,
        xerr=errors,
        ecolor="0.3",
        capsize=2,
    )


def _paper(axes: Axes, place: int, ratio: float) -> None:
    axes.plot(ratio, place, "D", color="tab:red", markersize=6)
    axes.annotate(
        f"{ratio:.2f} in the paper",
        (ratio, place),
        (8, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color="tab:red",
    )


def _number(line: Line, column: str) -> float:
    return float(str(line[column]))
