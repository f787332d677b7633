"""Success on problems of mathematics over training steps."""

from matplotlib.figure import Figure

from bench.plots import curves, style


def draw(result: style.Result) -> Figure:
    success = result["series"]["success"]
    before, after = (row["pass@1"] for row in result["rows"])
    title = "A tiny agent learns which calculation a story asks for"
    note = "Line: success on training problems. Dots: held-out problems. Higher is better."
    made = style.figure(3.9, title, note)
    axes = made.subplots()
    curves.curve(axes, [success], [(before, after)], style.OURS)
    curves.label_end(axes, 0, before, "before:", style.OURS, -12)
    curves.label_end(axes, len(success), after, "after:", style.OURS)
    curves.finish(axes, len(success), 0.16)
    return made
