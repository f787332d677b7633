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
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

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


def _label(
    axes: Axes, at: tuple[float, float], text: str, color: str, offset: tuple[float, float] = (7, 0)
) -> None:
    """Writes at a point, `offset` points beside it; centred without an offset to the side."""
    side = "left" if offset[0] > 0 else "right" if offset[0] else "center"
    axes.annotate(
        text, at, offset, textcoords="offset points", va="center", ha=side, color=color,
        annotation_clip=False,
    )  # fmt: skip


def _names(axes: Axes, names: Sequence[str]) -> None:
    """Names rows at the left, the first on top; those of ours are blue."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    for label in axes.get_yticklabels():
        if label.get_text().startswith("ours"):
            label.set_color(OURS)


def _log(axes: Axes) -> None:
    """Gives the x axis a log scale with plain numbers: 0.1, 1, 10."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="x", alpha=0.25)


def _shares(axes: Axes, end: float, label: str) -> None:
    """Sets the axes of shares over time, with room for labels behind `end`."""
    axes.set_xlim(0, end * 1.24)
    axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= end])
    axes.spines["bottom"].set_bounds(0, end)
    axes.set_xlabel(label, loc="left")
    axes.set_ylim(0, 1.04)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(axis="y", alpha=0.25)


def _amount(value: float) -> str:
    """Returns a number with three digits, or all that are before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


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
        _label(axes, (len(runs[0]), after), f"{name} {after:.0%}", color, (9, shift))
    _shares(axes, max(len(runs[0]) for _, _, _, runs, _ in curves), "training step")


def _one_learning(title: str, runs: Sequence[Sequence[float]], ends: Sequence[End]) -> Figure:
    note = (
        "Line: success in training, mean and range of seeds. Dots: held-out tasks. Higher is "
        "better."
    )
    made = _learnings(3.9, title, note, [("after:", OURS, 0, runs, ends)])
    before = fmean(end[0] for end in ends)
    _label(made.axes[0], (0, before), f"before: {before:.0%}", OURS, (9, -12))
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
    "harness": ("pi:", OTHERS, 4),
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
        axes.set_title("The trainer gets tokens or text: three seeds each", loc="left")
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


def _dots(axes: Axes, title: str, rows: Sequence[tuple[str, float, str]]) -> None:
    """Draws a dot for each row: its name, its value, and the text beside it."""
    _names(axes, [name for name, _, _ in rows])
    for place, (name, value, text) in enumerate(rows):
        color = OURS if name.startswith("ours") else OTHERS
        axes.plot(value, place, "o", color=color, markersize=7)
        _label(axes, (value, place), text, color)
    _log(axes)
    values = [value for _, value, _ in rows]
    axes.set_xlim(min(values) * 0.7, max(values) * 3)
    axes.set_title(title, loc="left")


COMMANDS = (
    *("ours, apptainer SIF", "ours, bubblewrap", "bare pty on the event loop"),
    *("tmux control mode", "bash -c each", "apptainer exec instance each", "apptainer exec each"),
    "tmux as OpenHands",
)
STARTS = (
    *("ours from the pool, SIF", "ours, bubblewrap", "ours warm, SIF", "ours cold, SIF"),
    *("bare bwrap", "apptainer exec -C, SIF", "apptainer exec, same options, SIF"),
    "apptainer instance start, SIF",
)
"""Rows of docs/sandbox.md, ours first."""


def _tools(content: Content) -> Figure:
    def times(shown: Sequence[str], **wanted: object) -> list[tuple[str, float, str]]:
        rows = [row for row in content["rows"] if wanted.items() <= row.items()]
        found = {row["who"]: row["p50_ms"] for row in rows}
        return [(who, found[who], f"{_amount(found[who])} ms") for who in shown]

    commands, starts = times(COMMANDS, part="bash", what="true"), times(STARTS, what="1 at once")
    ours, other = (commands[at][2] for at in (0, -2))
    title = f"A command in a container takes {ours} here, {other} by apptainer exec"
    made = _figure(6.2, title, "Medians in ms, log scale. Lower is better.")
    top, bottom = made.subplots(2, 1)
    _dots(top, "One command (true) in a sandbox that runs", commands)
    _dots(bottom, "One start of a sandbox", starts)
    return made


def _ablation(content: Content) -> Figure:
    rows = [row for row in content["rows"] if row.get("ratio") is not None]
    rows = sorted((row for row in rows if row["row"] != row["base"]), key=lambda row: row["ratio"])
    note = (
        "Informative groups per second, as a share of those with all. Lines: 95 %.\n"
        "Diamonds: ProRL Agent's own table. Further left: it matters more."
    )
    made = _figure(0.36 * len(rows) + 1.3, "Each optimisation, switched off alone", note)
    axes = made.subplots()
    for place, row in enumerate(rows):
        axes.plot([row["low"], row["high"]], [place, place], color=OURS, linewidth=1.4)
        axes.plot(row["ratio"], place, "o", color=OURS, markersize=7)
        _label(axes, (row["ratio"], place), f"{row['ratio']:.2f}", OURS, (0, 10))
        if row["paper"] is not None:
            axes.plot(row["paper"], place, "D", color=ACCENT, markersize=6)
            at = (max(row["paper"], row["high"]), place)
            _label(axes, at, f"paper {row['paper']:.2f}", ACCENT)
    axes.axvline(1, color="0.4", linewidth=1)
    _label(axes, (1, -0.75), "with all", "0.3", (-20, 0))
    _names(axes, [row["row"] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -1.1)
    axes.set_xlim(0, max(row["high"] for row in rows) * 1.15)
    axes.grid(axis="x", alpha=0.25)
    return made


LOADED: dict[str, tuple[str, float]] = {
    "ours, bubblewrap": ("ours, bubblewrap", 0),
    "ours, apptainer": ("ours, Apptainer", 0),
    "ours, process": ("ours, no isolation", -12),
    "floor": ("bare asyncio", 4),
    "mini-swe-agent, thin model": ("mini-swe-agent, one HTTP call", 6),
    "mini-swe-agent, LiteLLM": ("mini-swe-agent as installed", 6),
    "verifiers": ("verifiers as installed", -7),
}
"""Rows of docs/operations.md, ours first: name, and points that it is moved up beside its rates, if
it has any."""


def _load(content: Content) -> Figure:
    rows = [row for row in content["rows"] if row["latency_ms"] == 100]
    at_64 = {row["who"]: row for row in rows if row["at_once"] == 64}
    both = {who: row["cpu_ms"] + row["children_ms"] for who, row in at_64.items()}
    ours, peer = both["ours, bubblewrap"], both["mini-swe-agent, LiteLLM"]
    title = f"A turn takes {ours:.1f} ms of CPU; mini-swe-agent as installed takes {peer:.1f}"
    made = _figure(6.6, title, "Two cores, an engine that takes 100 ms for a call.")
    top, bottom = made.subplots(2, 1, height_ratios=[1.35, 1])
    for place, who in enumerate(LOADED):
        color = OURS if who.startswith("ours") else OTHERS
        own = at_64[who]["cpu_ms"]
        top.barh(place, own, color=color, height=0.62)
        top.barh(place, both[who] - own, left=own, color=color, alpha=0.4, height=0.62)
        _label(top, (both[who], place), f"{both[who]:.1f}", color)
    _names(top, [name for name, _ in LOADED.values()])
    top.set_title("CPU of a turn with 64 rollouts, ms: agents' process, pale: commands", loc="left")
    _rates(bottom, rows)
    return made


def _rates(axes: Axes, rows: Sequence[Content]) -> None:
    for who, (name, shift) in LOADED.items():
        points = [(row["at_once"], row["rollouts_per_s"]) for row in rows if row["who"] == who]
        if len(points) == 1:
            continue
        color, width = (OURS, 2.4) if who.startswith("ours") else (OTHERS, 1.4)
        axes.plot(*zip(*points, strict=True), marker="o", color=color, linewidth=width)
        _label(axes, points[-1], name, color, (8, shift))
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
    axes.set_xlim(0.8, 40000)
    axes.spines["bottom"].set_bounds(0.8, 1024)
    axes.grid(axis="y", alpha=0.25)
    axes.set_ylim(0, None)
    axes.set_xlabel("rollouts at once", loc="left")
    axes.set_title("Rollouts per second: higher is better", loc="left")


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
    "ablation": _ablation,
    "dapo": _dapo,
    "demo": _demo,
    "gateway_learning": _gateway_learning,
    "load": _load,
    "math_demo": _math_demo,
    "smollm": _smollm,
    "tools": _tools,
}
"""What draws a picture, by the name of its file."""


def main() -> None:
    for name in sys.argv[1:] or PICTURES:
        print(draw(name))


if __name__ == "__main__":
    main()
