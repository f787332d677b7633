"""Draws the pictures of results: `python -m bench.pictures [NAME...]`, without names all of them.

Measures nothing: a picture shows its file of bench/results, and what the page beside it says.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import PercentFormatter

from recipes.demo.report import smooth

RESULTS = Path(__file__).parent / "results"
OURS, OTHERS, ACCENT, GREEN, TRAINING = "#0860c4", "#6e7781", "#c4520a", "#17733a", "#f0b37e"
TEXT = 9.5
"""Points: 13 pixels where the picture is 720 wide."""
WIDTH_IN, MARGIN_IN = 7.2, 0.08
STYLE = {
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "prorl",
}
Content = dict[str, Any]
"""A file of bench/results, read."""
Draw = Callable[[Content], Figure]
End = tuple[float, float]
"""Held-out success before and after a training."""
Curve = tuple[str, str, float, Sequence[Sequence[float]], Sequence[End]]
"""Name, color, points that the name is moved up, and runs with their ends."""


def draw(name: str, directory: Path = RESULTS) -> Path:
    """Writes NAME.svg beside its file. Raises `KeyError` if the file lacks what is drawn."""
    path = directory / f"{name}.json"
    with rc_context(STYLE):
        made = PICTURES[name](json.loads(path.read_text(encoding="utf-8")))
        made.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return path.with_suffix(".svg")


def _figure(height_in: float, title: str, note: str) -> Figure:
    """Returns an empty picture with its message above, and under it what is shown."""
    engine = ConstrainedLayoutEngine(w_pad=MARGIN_IN, h_pad=MARGIN_IN)
    made = Figure(figsize=(WIDTH_IN, height_in), layout=engine)
    made.suptitle(title, x=0.014, ha="left", fontsize=TEXT + 2.5, fontweight="bold")
    made.supxlabel(note, x=0.014, ha="left", fontsize=TEXT, color="0.3")
    return made


def _label(axes: Axes, at: tuple[float, float], text: str, color: str, up: float = 0) -> None:
    """Writes beside a point, and so many points above it."""
    axes.annotate(
        text, at, (8, up), textcoords="offset points", va="center", color=color,
        annotation_clip=False,
    )  # fmt: skip


def _shares(axes: Axes, end: float, label: str) -> None:
    """Sets the axes of shares over time, with room for labels behind `end`."""
    axes.set_xlim(0, end * 1.24)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= end])
    axes.spines["bottom"].set_bounds(0, end)
    axes.set_xlabel(label, loc="left")
    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(axis="y", alpha=0.25)


# --- success over training ----------------------------------------------------------------------


def _learning(axes: Axes, runs: Sequence[Sequence[float]], ends: Sequence[End], color: str) -> None:
    """Draws the mean of runs, smoothed, a band over them, and held-out success at both ends."""
    columns = list(zip(*map(smooth, runs), strict=False))
    steps = range(1, len(columns) + 1)
    if len(runs) > 1:
        low, high = [min(one) for one in columns], [max(one) for one in columns]
        axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
    axes.plot(steps, [fmean(one) for one in columns], color=color, linewidth=2.2)
    before, after = (fmean(end[at] for end in ends) for at in (0, 1))
    axes.plot([0, steps[-1]], [before, after], "o", color=color, markersize=7, clip_on=False)


def _learnings(height_in: float, title: str, note: str, curves: Sequence[Curve]) -> Figure:
    made = _figure(height_in, title, note)
    _draw_learnings(made.subplots(), curves)
    return made


def _draw_learnings(axes: Axes, curves: Sequence[Curve]) -> None:
    for name, color, shift, runs, ends in curves:
        _learning(axes, runs, ends, color)
        after = fmean(end[1] for end in ends)
        _label(axes, (len(runs[0]), after), f"{name} {after:.0%}", color, shift)
    _shares(axes, max(len(runs[0]) for _, _, _, runs, _ in curves), "training step")


def _one_learning(title: str, runs: Sequence[Sequence[float]], ends: Sequence[End]) -> Figure:
    note = (
        "Line: success in training, mean and range of seeds. Dots: held-out tasks. Higher is "
        "better."
    )
    made = _learnings(3.9, title, note, [("after:", OURS, 0, runs, ends)])
    before = fmean(end[0] for end in ends)
    _label(made.axes[0], (0, before), f"before: {before:.0%}", OURS, -12)
    return made


def _demo(content: Content) -> Figure:
    rows = content["rows"]
    ends = [(row["heldout_success_before"], row["heldout_success_after"]) for row in rows]
    minutes = fmean(row["train_minutes"] for row in rows)
    title = f"In {minutes:.1f} minutes a tiny agent learns to use its shell"
    return _one_learning(title, content["series"]["success"], ends)


def _math_demo(content: Content) -> Figure:
    before, after = (row["pass@1"] for row in content["rows"])
    title = "A tiny agent learns which calculation a story asks for"
    return _one_learning(title, [content["series"]["success"]], [(before, after)])


RUNS = {
    "reference": ("TRL:", OURS, -16),
    "vllm": ("TRL, vLLM:", ACCENT, 8),
    "verl": ("VeRL:", GREEN, -4),
    "harness": ("pi:", OTHERS, -8),
}
LOOPS = {"tokens": ("by tokens:", OURS, 8), "text": ("by text:", ACCENT, -8)}


def _smollm(content: Content) -> Figure:
    rows, series = content["rows"], content["series"]
    note = (
        "SmolLM2-135M in fp32. Lines: success in training, mean of five steps, range of seeds.\n"
        "Dots: held-out tasks, before and after. Higher is better."
    )
    loops = [row for row in rows if row["part"] == "text"]
    made = _figure(7.2 if loops else 4.1, "On two CPU cores a language model learns", note)
    top, *below = made.subplots(1 + bool(loops), 1, squeeze=False)[:, 0]
    top.set_title("Trainers, engines, and an unmodified program as the agent", loc="left")
    by_part: list[Curve] = []
    for part, look in RUNS.items():
        ends = [(row["before"], row["after"]) for row in rows if row["part"] == part]
        by_part.append((*look, series.get(part, []), ends))
    _draw_learnings(top, [curve for curve in by_part if curve[4]])
    for axes in below:
        axes.set_title("The trainer gets tokens, or text: three seeds each", loc="left")
        by_loop: list[Curve] = []
        for loop, look in LOOPS.items():
            ends = [(row["before"], row["after"]) for row in loops if row["loop"] == loop]
            by_loop.append((*look, series[loop], ends))
        _draw_learnings(axes, by_loop)
    return made


PROGRAMS = {
    "pi": ("pi", OURS, 6),
    "openai": ("OpenAI's SDK", ACCENT, -4),
    "mini_swe_agent": ("mini-swe-agent", GREEN, -2),
}


def _gateway_learning(content: Content) -> Figure:
    note = (
        "Lines: success on training tasks. Dots: held-out tasks, before and after.\n"
        "OpenAI's SDK: mean and range of three seeds. Higher is better."
    )
    curves: list[Curve] = []
    for agent, (name, color, shift) in PROGRAMS.items():
        rows = [row for row in content["rows"] if row["agent"] == agent]
        ends = [(row["heldout_before"], row["heldout_after"]) for row in rows]
        curves.append((name, color, shift, [row["success"] for row in rows], ends))
    return _learnings(4.4, "Unmodified programs train a tiny policy", note, curves)


# --- contenders ---------------------------------------------------------------------------------

LOADED: dict[str, tuple[str, float]] = {
    "ours, process": ("ours, no isolation", -12),
    "floor": ("bare asyncio", 4),
    "mini-swe-agent, thin model": ("mini-swe-agent, one HTTP call", 6),
    "mini-swe-agent, LiteLLM": ("mini-swe-agent as installed", 6),
    "verifiers": ("verifiers as installed", -7),
}
"""Contenders at all loads: name, and points that it is moved up beside its last point."""


def _load(content: Content) -> Figure:
    made = _figure(3.4, "Rollouts per second: higher is better", "Two cores, 100 ms a call.")
    axes = made.subplots()
    for who, (name, shift) in LOADED.items():
        rows = [row for row in content["rows"] if row["who"] == who and row["latency_ms"] == 100]
        points = [(row["at_once"], row["rollouts_per_s"]) for row in rows]
        color, width = (OURS, 2.4) if who.startswith("ours") else (OTHERS, 1.4)
        axes.plot(*zip(*points, strict=True), marker="o", color=color, linewidth=width)
        _label(axes, points[-1], name, color, shift)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
    axes.set_xlim(0.8, 40000)
    axes.spines["bottom"].set_bounds(0.8, 1024)
    axes.grid(axis="y", alpha=0.25)
    axes.set_ylim(0, None)
    axes.set_xlabel("rollouts at once", loc="left")
    return made


def _dapo(content: Content) -> Figure:
    runs = content["series"]
    ends = {name: run["pauses"][-1][1] for name, run in runs.items()}
    names = sorted(runs, key=lambda name: ends[name])
    groups, first = runs[names[0]]["groups"], ends[names[0]]
    title = f"{groups} informative groups in {first:.0f} s, where workers never wait for a batch"
    note = "Area: RUN's workers at work. Orange: the trainer trains. Earlier and fuller is better."
    made = _figure(0.85 * len(names) + 1.1, title, note)
    all_axes = made.subplots(len(names), 1, sharex=True, sharey=True)
    for name, axes in zip(names, all_axes, strict=True):
        color = OURS if name.startswith("ours") else OTHERS
        times, busy = zip(*runs[name]["busy"], strict=True)
        axes.fill_between(times, busy, step="post", color=color, linewidth=0)
        for start, end in runs[name]["pauses"]:
            axes.axvspan(start, end, 0, 0.12, color=TRAINING, linewidth=0)
        _label(axes, (ends[name], 0.5), f"{ends[name]:.0f} s", color)
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        axes.set_title(name, loc="left", color=color)
    all_axes[-1].set_xlim(0, ends[names[-1]] * 1.08)
    all_axes[-1].set_xlabel("seconds", loc="left")
    return made


PICTURES: dict[str, Draw] = {
    "dapo": _dapo,
    "demo": _demo,
    "gateway_learning": _gateway_learning,
    "load": _load,
    "math_demo": _math_demo,
    "smollm": _smollm,
}
"""What draws a picture, by the name of its file."""


def main() -> None:
    for name in sys.argv[1:] or PICTURES:
        print(draw(name))


if __name__ == "__main__":
    main()
