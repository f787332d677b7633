"""Rows of the table, and the figures that are quoted.

A ratio is groups per second of the row over those of its base, of one seed; the row has the median
over the seeds and the 95 % interval of a bootstrap. Runs on a busy machine are left out and
counted. `engine_busy` and `token_share` are shares of the modelled engines' time and of what full
batches could have sampled; neither is GPU utilisation.
"""

import random
from collections.abc import Mapping, Sequence
from statistics import fmean, median, quantiles

from bench.ablation.actions import BASH as BASH_ACTION
from bench.ablation.actions import TMUX, Times
from bench.ablation.rows import BALANCING, BALANCING_EQUAL, BASH, CLEANUP, Row
from bench.ablation.running import Run

Runs = Mapping[str, Sequence[Run]]
"""Runs, keyed by row, all in the same order of seeds."""

SAMPLES = 4000
MOST_ABOVE = 1.05
"""Largest ratio of a row without an optimisation that still has the right sign."""


def ratios(row: Row, runs: Runs) -> list[float]:
    """Returns the ratio of each seed of which both runs are valid."""
    return [
        own.groups_per_s / base.groups_per_s
        for own, base in zip(runs[row.name], runs[row.base], strict=True)
        if not own.quiet.problem and not base.quiet.problem
    ]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the median, by a bootstrap."""
    rng = random.Random(0)
    medians = [median(rng.choices(values, k=len(values))) for _ in range(SAMPLES)]
    cuts = quantiles(medians, n=40, method="inclusive")
    return cuts[0], cuts[-1]


def table(rows: Sequence[Row], runs: Runs) -> list[dict[str, object]]:
    return [_line(row, runs) for row in rows]


def _line(row: Row, runs: Runs) -> dict[str, object]:
    valid = [one for one in runs[row.name] if not one.quiet.problem]
    own = ratios(row, runs)
    low, high = interval(own) if own else (None, None)

    def mean(figure: str, digits: int = 2) -> float | None:
        return round(fmean(getattr(one, figure) for one in valid), digits) if valid else None

    actions = sorted(ms for one in valid for ms in one.action_ms)
    return {
        "row": row.name,
        "switches": " ".join(row.switches),
        "base": row.base,
        "ratio": _rounded(median(own)) if own else None,
        "low": _rounded(low),
        "high": _rounded(high),
        "paper": row.paper,
        "groups_per_s": mean("groups_per_s", 3),
        "rollouts_per_s": mean("rollouts_per_s"),
        "engine_busy": mean("engine_busy"),
        "token_share": mean("token_share", 3),
        "wasted_turns": mean("wasted", 3),
        "action_ms_mean": round(fmean(actions), 1) if actions else None,
        "action_ms_p50": round(median(actions), 1) if actions else None,
        "action_ms_p95": round(quantiles(actions, n=20)[-1], 1) if len(actions) > 1 else None,
        "cpu_share": round(max(one.quiet.cpu_share for one in runs[row.name]), 2),
        "other_load": round(max(one.quiet.other_load for one in runs[row.name]), 2),
        "valid_runs": len(own),
    }


def headline(
    rows: Sequence[Row], runs: Runs, actions: Mapping[str, Times]
) -> dict[str, float | None]:
    by_name = {row.name: row for row in rows}
    figures: dict[str, float | None] = {}
    for key, name in (
        ("without_balancing", BALANCING),
        ("without_balancing_equal_engines", BALANCING_EQUAL),
        ("without_bash", BASH),
        ("without_cleanup", CLEANUP),
    ):
        if name not in by_name:
            continue
        row = by_name[name]
        own = ratios(row, runs)
        low, high = interval(own) if own else (None, None)
        figures |= {
            key: _rounded(median(own)) if own else None,
            f"{key}_low": _rounded(low),
            f"{key}_high": _rounded(high),
        }
        if row.paper is not None:
            figures[f"{key}_paper"] = row.paper
    for key, what in (("action_ms", BASH_ACTION), ("action_ms_tmux", TMUX)):
        figures[key] = round(median(actions[what].times_ms), 3)
    return figures


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def problems(rows: Sequence[Row], runs: Runs) -> list[str]:
    """Returns what is wrong with the runs as a whole: rows with an invalid run."""
    return [
        f"{row.name}, seed {number}: {run.quiet.problem}"
        for row in rows
        for number, run in enumerate(runs[row.name])
        if run.quiet.problem
    ]


def wrong_signs(rows: Sequence[Row], runs: Runs) -> list[str]:
    """Returns the rows that are faster without their optimisation, and by how much; whether their
    runs were valid does not matter for that."""
    found = []
    for row in rows:
        pairs = zip(runs[row.name], runs[row.base], strict=True)
        ratio = median(own.groups_per_s / base.groups_per_s for own, base in pairs)
        if ratio > MOST_ABOVE:
            found.append(f"{row.name}: {ratio:.2f} of {row.base}")
    return found
