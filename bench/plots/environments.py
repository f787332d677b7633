"""Success on Harbor task directories over training steps."""

from matplotlib.figure import Figure

from bench.plots import curves, style


def draw(result: style.Result) -> Figure:
    (row,) = (row for row in result["rows"] if row["part"] == "training")
    success, before, after = row["success"], row["held-out success before"], row["after"]
    title = "A tiny policy learns from Harbor task directories"
    note = "Line: success on training tasks. Dots: held-out tasks. Higher is better."
    made = style.figure(3.9, title, note)
    axes = made.subplots()
    curves.curve(axes, [success], [(before, after)], style.OURS)
    curves.label_end(axes, 0, before, "before:", style.OURS, -10)
    curves.label_end(axes, len(success), after, "after:", style.OURS)
    curves.finish(axes, len(success), 0.16)
    return made
