"""CPU of a turn at 64 rollouts, and rollouts per second by how many run."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.load import headline
from bench.plots import style

NAMES = {
    headline.BUBBLEWRAP: "ours, bubblewrap",
    headline.APPTAINER: "ours, Apptainer",
    headline.OURS: "ours, no isolation",
    headline.FLOOR: "bare asyncio, one bash\nfor each rollout",
    headline.THIN: "mini-swe-agent with a model\nclient of one HTTP call",
    headline.LITELLM: "mini-swe-agent as\ninstalled (LiteLLM)",
    headline.VERIFIERS: "verifiers as installed",
}
"""Rows of docs/operations.md, ours first."""
AT_ENDS = {
    headline.FLOOR: ("bare asyncio", style.OTHERS, 4),
    headline.OURS: ("ours, no isolation", style.OURS, 0),
    headline.THIN: ("mini-swe-agent, one HTTP call", style.OTHERS, -2),
    headline.LITELLM: ("mini-swe-agent as installed", style.OTHERS, 6),
    headline.VERIFIERS: ("verifiers as installed", style.OTHERS, -7),
}


def draw(result: style.Result) -> Figure:
    rows = [row for row in result["rows"] if row["latency_ms"] == headline.LATENCY_MS]
    cost = {row["who"]: row for row in rows if row["at_once"] == headline.BUSY}
    ours, peer = (
        sum(cost[who][column] for column in ("cpu_ms", "children_ms"))
        for who in (headline.BUBBLEWRAP, headline.LITELLM)
    )
    title = f"A turn takes {ours:.1f} ms of CPU; mini-swe-agent as installed takes {peer:.1f}"
    made = style.figure(6.6, title, "Two cores, an engine that takes 100 ms for a call.")
    top, bottom = made.subplots(2, 1, height_ratios=[1.35, 1])
    _cost(top, cost)
    _rate(bottom, rows)
    return made


def _cost(axes: Axes, rows: dict[str, Any]) -> None:
    shown = [rows[who] for who in NAMES]
    own = [row["cpu_ms"] for row in shown]
    others = [row["children_ms"] for row in shown]
    colors = [style.OURS if row["who"].startswith("ours") else style.OTHERS for row in shown]
    axes.barh(range(len(shown)), own, color=colors, height=0.62)
    axes.barh(range(len(shown)), others, left=own, color=colors, alpha=0.4, height=0.62)
    for place, (row, color) in enumerate(zip(shown, colors, strict=True)):
        both = row["cpu_ms"] + row["children_ms"]
        style.label(axes, (both, place), f"{both:.1f}", color)
    style.names(axes, list(NAMES.values()))
    last = shown[-1]
    _within(axes, 0.5 * last["cpu_ms"], len(shown) - 1, "agents' process", "white")
    _within(axes, last["cpu_ms"] + 0.5 * last["children_ms"], len(shown) - 1, "commands", "black")
    style.clean(axes, f"CPU of a turn with {headline.BUSY} rollouts at once, ms: lower is better")


def _within(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    axes.text(x, y, text, ha="center", va="center", color=color, fontsize=style.TEXT)


def _rate(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for who, (name, color, shift) in AT_ENDS.items():
        points = [(row["at_once"], row["rollouts_per_s"]) for row in rows if row["who"] == who]
        width = 2.4 if who == headline.OURS else 1.4
        axes.plot(*zip(*points, strict=True), marker="o", color=color, linewidth=width)
        style.label(axes, points[-1], name, color, (8, shift))
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
    axes.set_xlim(0.8, 40000)
    axes.spines["bottom"].set_bounds(0.8, 1024)
    axes.grid(axis="y", alpha=0.25)
    axes.set_ylim(0, None)
    axes.set_xlabel("rollouts at once", loc="left")
    style.clean(axes, "Rollouts per second: higher is better")
