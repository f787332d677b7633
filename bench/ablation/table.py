"""Rows of the table, and the figures that are quoted.

A ratio is groups per second of the row over those of its base, of one seed; the row has the median
over the seeds and the 95 % interval of a bootstrap. Runs on a busy machine are no result.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from bench import frame
from bench.ablation.rows import BALANCING, BALANCING_EQUAL, BASH, CLEANUP, Row
from bench.ablation.running import Run

Runs = Mapping[str, Sequence[Run]]
"""Runs, keyed by row, all in the same order of seeds."""

MOST_ABOVE = 1.05
"""Largest ratio of a row without an optimisation that still has the right sign."""
QUOTED = {
    "without_balancing": BALANCING,
    "without_balancing_equal_engines": BALANCING_EQUAL,
    "without_bash": BASH,
    "without_cleanup": CLEANUP,
}


def ratios(row: Row, runs: Runs) -> list[float]:
    """Returns the ratio of each seed."""
    own, base = ([one.groups_per_s for one in runs[name]] for name in (row.name, row.base))
    return frame.ratios(own, base)


def line(row: Row, runs: Runs) -> frame.Row:
    own, found = ratios(row, runs), runs[row.name]
    low, high = frame.interval(own)
    return {
        "row": row.name,
        "switches": " ".join(row.switches),
        "base": row.base,
        "ratio": round(median(own), 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "paper": row.paper,
        "groups_per_s": round(fmean(one.groups_per_s for one in found), 3),
        "wasted_turns": round(fmean(one.wasted for one in found), 3),
        "action_ms_mean": round(fmean(ms for one in found for ms in one.action_ms), 1),
    }


def headline(table: Sequence[frame.Row]) -> frame.Row:
    figures: frame.Row = {}
    for key, name in QUOTED.items():
        row = frame.find(table, row=name)
        figures |= {key: row["ratio"], f"{key}_low": row["low"], f"{key}_high": row["high"]}
        if row["paper"] is not None:
            figures[f"{key}_paper"] = row["paper"]
    return figures


def problems(runs: Runs) -> list[str]:
    """Returns what is wrong with the runs as a whole: which of them had a busy machine."""
    return [
        f"{name}, seed {number + 1}: {run.quiet.problem}"
        for name, own in runs.items()
        for number, run in enumerate(own)
        if run.quiet.problem
    ]


def wrong_signs(rows: Sequence[Row], runs: Runs) -> list[str]:
    """Returns the rows that are faster without their optimisation, and by how much; whether their
    runs were valid does not matter for that."""
    found = {row: median(ratios(row, runs)) for row in rows}
    return [
        f"{row.name}: {ratio:.2f} of {row.base}"
        for row, ratio in found.items()
        if ratio > MOST_ABOVE
    ]
