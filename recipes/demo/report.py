"""Results of a training run for people and scripts: a curve as PNG, and summary.json.

Only formats what it is given; measures only the machine that it runs on.
"""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from recipes.common.versions import machine

PACKAGES = ("prorl-service", "torch", "transformers", "trl")
SMOOTHING_STEPS = 5


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step: means over its rollouts; the logprob gap is that of its worst token."""

    step: int
    success: float
    reward: float
    logprob_diff_max: float


@dataclass(frozen=True, slots=True)
class Headline:
    """`heldout_success_*` are shares from 0 to 1, `logprob_diff_max` is in nats.

    `service_rss_mb` is the service at rest, before its first rollout. `sampled_tokens_per_s` is
    that of the held-out rollouts after training, all their work included.
    """

    heldout_success_before: float
    heldout_success_after: float
    logprob_diff_max: float
    rollouts_per_s: float
    train_minutes: float
    service_rss_mb: float
    sampled_tokens_per_s: float


def write_summary(
    path: Path,
    headline: Headline,
    curve: Sequence[Step],
    settings: Mapping[str, object],
    peak_memory_mb: Mapping[str, float],
) -> None:
    """Writes summary.json. `settings`: all that is needed to repeat the run.

    Raises `ValueError` for NaN.
    """
    summary = {
        "headline": asdict(headline),
        "settings": dict(settings),
        "peak_memory_mb": dict(peak_memory_mb),
        "curve": [asdict(step) for step in curve],
        "versions": {"python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
        "machine": machine(),
    }
    path.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")


def write_curve(
    path: Path, curve: Sequence[Step], *, before: float, after: float, title: str
) -> None:
    """Draws the success of each step's rollouts, and that on held-out tasks at both ends."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    steps = [point.step for point in curve]
    success = [point.success for point in curve]
    axes.plot(steps, success, color="tab:blue", alpha=0.3, linewidth=1)
    label = f"training tasks, mean of {SMOOTHING_STEPS} steps"
    axes.plot(steps, smooth(success), color="tab:blue", linewidth=2, label=label)
    ends, scores = [0, steps[-1]], [before, after]
    axes.plot(ends, scores, "o", color="tab:orange", markersize=8, label="held-out tasks")
    for x, y in zip(ends, scores, strict=True):
        below_or_above = 10 if y < 0.5 else -16
        axes.annotate(
            f"{y:.0%}", (x, y), (0, below_or_above), textcoords="offset points", ha="center"
        )
    axes.set(title=title, xlabel="training step", ylabel="success", ylim=(0, 1.03))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=150)


def smooth(values: Sequence[float]) -> list[float]:
    """Returns, for each value, the mean of up to `SMOOTHING_STEPS` values that end with it."""
    return [
        fmean(values[max(0, stop - SMOOTHING_STEPS) : stop]) for stop in range(1, len(values) + 1)
    ]
