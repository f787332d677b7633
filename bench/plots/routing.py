"""How long groups take by scenario and policy, in the simulator and on real engines."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.plots import style

NAMES = {
    "ours": "ours",
    "min-heap of task counts": "min-heap",
    "consistent hash": "consistent hash",
    "round robin": "round robin",
}
SCENARIOS = {
    "steady": "steady",
    "one slow": "one engine slow",
    "one added late": "one added late",
    "one dying": "one dying",
}
"""Rows of docs/inference.md."""
STEP = 0.2


def draw(result: style.Result) -> Figure:
    rows = result["rows"]
    ours, other = (_of(rows, "engines", "one slow", who) for who in ("ours", "round robin"))
    title = f"One slow engine: a group takes {ours:.1f} s, with round robin {other:.1f} s"
    note = "Dot: mean; line: to the 90th percentile. Log scale. Lower is better."
    made = style.figure(7.4, title, note)
    for axes, (where, name) in zip(
        made.subplots(2, 1), (("simulator", "simulator"), ("engines", "real engines")), strict=True
    ):
        _panel(axes, [row for row in rows if row["where"] == where])
        style.clean(axes, f"Seconds of a group, {name}")
    return made


def _of(rows: Sequence[dict[str, Any]], where: str, scenario: str, policy: str) -> float:
    wanted = {"where": where, "scenario": scenario, "policy": policy}
    (row,) = (row for row in rows if wanted.items() <= row.items())
    return float(row["mean_s"])


def _panel(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    scenarios, policies = list(SCENARIOS), list(NAMES)
    for row in rows:
        policy = policies.index(row["policy"])
        place = scenarios.index(row["scenario"]) + (policy - 1.5) * STEP
        color = style.OTHERS if policy else style.OURS
        axes.plot([row["mean_s"], row["p90_s"]], [place, place], color=color, linewidth=1.4)
        axes.plot(row["mean_s"], place, "o", color=color, markersize=5.5)
        text = f"{NAMES[row['policy']]} {style.amount(row['mean_s'])}"
        style.label(axes, (row["p90_s"], place), text, color)
    style.names(axes, list(SCENARIOS.values()))
    style.log(axes)
    low = min(row["mean_s"] for row in rows)
    axes.set_xlim(low * 0.85, max(row["p90_s"] for row in rows) * 3.4)
    for border in range(len(scenarios) - 1):
        axes.axhline(border + 0.5, color="0.85", linewidth=0.8)
