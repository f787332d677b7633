"""How many of RUN's workers are at work, over time, for each contender."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.plots import style

TRAINING = "#f0b37e"


def draw(result: style.Result) -> Figure:
    """`series`: for each contender its `busy` (seconds, share), `pauses` and number of `groups`."""
    runs: dict[str, dict[str, Any]] = result["series"]
    names = sorted(runs, key=lambda name: runs[name]["pauses"][-1][1])
    first, last = (runs[name]["pauses"][-1][1] for name in (names[0], names[-1]))
    groups = runs[names[0]]["groups"]
    title = f"{groups} informative groups in {first:.0f} s, where workers never wait for a batch"
    note = "Area: RUN's workers at work. Orange: the trainer trains. Earlier and fuller is better."
    made = style.figure(0.85 * len(names) + 1.1, title, note)
    all_axes = made.subplots(len(names), 1, sharex=True, sharey=True)
    for name, axes in zip(names, all_axes, strict=True):
        _run(axes, name, runs[name])
        axes.tick_params(axis="x", length=3 if axes is all_axes[-1] else 0)
    all_axes[-1].set_xlim(0, last * 1.08)
    all_axes[-1].set_xlabel("seconds", loc="left")
    return made


def _run(axes: Axes, name: str, run: dict[str, Any]) -> None:
    color = style.OURS if name.startswith("ours") else style.OTHERS
    times, busy = zip(*run["busy"], strict=True)
    axes.fill_between(times, busy, step="post", color=color, linewidth=0)
    for start, end in run["pauses"]:
        axes.axvspan(start, end, 0, 0.12, color=TRAINING, linewidth=0)
    end = run["pauses"][-1][1]
    style.label(axes, (end, 0.5), f"{end:.0f} s", color)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    style.clean(axes, name)
    axes.title.set_color(color)
