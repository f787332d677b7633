"""Informative groups and levels of a step, with a curriculum and without."""

from matplotlib.figure import Figure

from bench.plots import style


def draw(result: style.Result) -> Figure:
    """`series`: `skill` by step, and for `off` and `on` `shares` of informative groups by step and
    `levels`: for each level, its share of the groups by step."""
    series = result["series"]
    off, on = (row["informative_share"] for row in result["rows"])
    title = f"With a curriculum {on:.0%} of the groups are informative, without {off:.0%}"
    note = "Below, blue: share of a level in a step; orange: the level solved half the time."
    made = style.figure(5.6, title, note)
    shares, *mixes = made.subplots(3, 1, sharex=True)
    for name, color, shift in (("off", style.OTHERS, -16), ("on", style.OURS, 16)):
        values = series[name]["shares"]
        shares.plot(values, color=color, linewidth=2)
        at = len(values) // 2
        style.label(shares, (at, values[at]), f"curriculum {name}", color, (0, shift))
    style.percent(shares)
    style.clean(shares, "Informative groups of a step: higher is better")
    for axes, name in zip(mixes, ("off", "on"), strict=True):
        levels = series[name]["levels"]
        axes.imshow(levels, aspect="auto", origin="lower", cmap="Blues", vmin=0, vmax=0.6)
        axes.plot(series["skill"], color=style.ACCENT, linewidth=1.5)
        axes.set_yticks(range(0, len(levels), 2))
        style.clean(axes, f"Level of the groups, curriculum {name}")
    mixes[-1].set_xlabel("step", loc="left")
    return made
