"""Success of the demo over training steps, for all seeds."""

from statistics import fmean

from matplotlib.figure import Figure

from bench.plots import curves, style


def draw(result: style.Result) -> Figure:
    runs = result["series"]["success"]
    ends = [(row["heldout_success_before"], row["heldout_success_after"]) for row in result["rows"]]
    before, after = (fmean(end[at] for end in ends) for at in (0, 1))
    minutes = fmean(row["train_minutes"] for row in result["rows"])
    title = f"In {minutes:.1f} minutes a tiny agent learns to use its shell"
    note = (
        "Line: success on training tasks, mean and range of "
        f"{len(runs)} seeds. Dots: held-out tasks. Higher is better."
    )
    made = style.figure(3.9, title, note)
    axes = made.subplots()
    curves.curve(axes, runs, ends, style.OURS)
    curves.label_end(axes, 0, before, "before:", style.OURS, -12)
    curves.label_end(axes, len(runs[0]), after, "after:", style.OURS)
    curves.finish(axes, len(runs[0]), 0.16)
    return made
