"""The picture: groups per second without each optimisation, as a share of those with all."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from bench.ablation.rows import ALL, ALL_SLOW

Line = Mapping[str, object]


def draw(lines: Sequence[Line], path: Path) -> None:
    shown = [one for one in lines if one["row"] not in (ALL, ALL_SLOW) and one["ratio"] is not None]
    shown.sort(key=_number("ratio"), reverse=True)
    figure = Figure(figsize=(9, 0.42 * len(shown) + 1.6), layout="constrained")
    axes = figure.subplots()
    places = range(len(shown))
    ratios = [_number("ratio")(one) for one in shown]
    colors = ["tab:blue" if one["paper"] is not None else "0.7" for one in shown]
    errors = [
        [_number("ratio")(one) - _number("low")(one) for one in shown],
        [_number("high")(one) - _number("ratio")(one) for one in shown],
    ]
    axes.barh(places, ratios, color=colors, height=0.7, xerr=errors, ecolor="0.3", capsize=2)
    for place, one in zip(places, shown, strict=True):
        axes.text(0.01, place, f"{_number('ratio')(one):.2f}", va="center", fontsize=9)
        if one["paper"] is not None:
            axes.plot(_number("paper")(one), place, "D", color="tab:red", markersize=6)
            text = f"{_number('paper')(one):.2f} in the paper"
            axes.annotate(
                text,
                (_number("paper")(one), place),
                (8, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color="tab:red",
            )
    axes.axvline(1, color="black", linewidth=1)
    axes.text(1, 1.01, "with all", ha="center", fontsize=9, transform=axes.get_xaxis_transform())
    axes.set_yticks(places, [str(one["row"]) for one in shown])
    axes.set_xlim(0, 1.15)
    axes.set_xlabel("informative groups per second, as a share of those with all; lines: 95 %")
    axes.set_title("Each optimisation, switched off alone", loc="left", pad=16)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


class _number:
    """Reads a number out of a line."""

    def __init__(self, column: str) -> None:
        self._column = column

    def __call__(self, line: Line) -> float:
        return float(str(line[self._column]))
