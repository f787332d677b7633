"""What one shell command costs, and what one start of a sandbox costs."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.plots import style

COMMANDS = (
    "ours, apptainer SIF",
    "ours, bubblewrap",
    "bare pty on the event loop",
    "tmux control mode",
    "pexpect replwrap",
    "bash -c each",
    "apptainer exec instance each",
    "apptainer exec each",
    "tmux as OpenHands",
)
STARTS = (
    "ours from the pool, SIF",
    "ours, bubblewrap",
    "ours warm, SIF",
    "ours cold, SIF",
    "bare bwrap",
    "apptainer exec -C, SIF",
    "apptainer exec, same options, SIF",
    "apptainer instance start, SIF",
)
"""Rows of docs/sandbox.md, ours first."""


def draw(result: style.Result) -> Figure:
    commands = _times(result["rows"], "bash", what="true")
    starts = _times(result["rows"], "start", at_once=1)
    ours, other = (
        style.amount(commands[name]) for name in ("ours, apptainer SIF", "apptainer exec each")
    )
    title = f"A command in a container takes {ours} ms here, {other} ms by apptainer exec"
    made = style.figure(6.2, title, "Medians in ms, log scale. Lower is better.")
    top, bottom = made.subplots(2, 1)
    _panel(top, commands, COMMANDS)
    style.clean(top, "One command (true) in a sandbox that runs")
    _panel(bottom, starts, STARTS)
    style.clean(bottom, "One start of a sandbox")
    return made


def _times(rows: Sequence[dict[str, Any]], part: str, **wanted: object) -> dict[str, float]:
    found = (row for row in rows if row["part"] == part and wanted.items() <= row.items())
    return {row["who"]: row["p50_ms"] for row in found}


def _panel(axes: Axes, times: dict[str, float], shown: Sequence[str]) -> None:
    values = [times[name] for name in shown]
    colors = [style.OURS if name.startswith("ours") else style.OTHERS for name in shown]
    style.dots(axes, values, colors, " ms")
    style.names(axes, shown)
    axes.set_xlim(min(values) * 0.7, max(values) * 3)
