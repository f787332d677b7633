"""Reward of training steps and held-out success of the demo's agent, trained with VeRL."""

from matplotlib.figure import Figure

from bench.plots import style


def draw(result: style.Result) -> Figure:
    return _draw(result, "demo", "VeRL trains the demo's agent through the service")


def draw_pi(result: style.Result) -> Figure:
    return _draw(result, "pi", "VeRL trains an unmodified pi")


def _draw(result: style.Result, part: str, title: str) -> Figure:
    """`series`: for each part `reward` by step, and `heldout`: pairs of step and success."""
    series = result["series"][part]
    rewards, heldout = series["reward"], series["heldout"]
    made = style.figure(3.9, title, "Higher is better.")
    axes = made.subplots()
    axes.plot(range(1, len(rewards) + 1), rewards, color=style.OTHERS)
    axes.plot(*zip(*heldout, strict=True), "o-", color=style.OURS, linewidth=2.2, clip_on=False)
    for step, success in (heldout[0], heldout[-1]):
        style.label(axes, (step, success), f"{success:.0%}", style.OURS, (9, -9))
    middle = len(rewards) // 2
    style.label(axes, (middle, 0.3), "reward, training", style.OTHERS)
    style.label(axes, (middle, 0.4), "success, held-out tasks", style.OURS)
    axes.set_xlabel("training step", loc="left")
    style.percent(axes)
    style.clean(axes)
    axes.set_xlim(0, len(rewards) * 1.1)
    return made
