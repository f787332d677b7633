"""Success of unmodified programs over training steps."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from bench.plots import curves, style

AGENTS = {
    "pi": ("pi", style.OURS, 6),
    "openai": ("OpenAI's SDK", style.ACCENT, -4),
    "mini_swe_agent": ("mini-swe-agent", "#17733a", -2),
}


def draw(result: style.Result) -> Figure:
    rows: Sequence[dict[str, Any]] = result["rows"]
    note = (
        "Lines: success on training tasks. Dots: held-out tasks, before and after.\n"
        "OpenAI's SDK: mean and range of three seeds. Higher is better."
    )
    made = style.figure(4.4, "Unmodified programs train a tiny policy", note)
    axes = made.subplots()
    for agent, (name, color, shift) in AGENTS.items():
        runs = [row for row in rows if row["agent"] == agent]
        ends = [(row["heldout_before"], row["heldout_after"]) for row in runs]
        curves.curve(axes, [row["success"] for row in runs], ends, color)
        after = fmean(end[1] for end in ends)
        curves.label_end(axes, len(runs[0]["success"]), after, name, color, shift)
    curves.finish(axes, max(len(row["success"]) for row in rows), 0.26)
    return made
