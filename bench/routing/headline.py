"""The results of runs: rows of the table, and the figures that are quoted.

A row's `mean_s` and `p90_s` are of the groups of a run, averaged over all runs, in which each
policy has the same work. `ours_to_this` is the mean of ours over this policy's `mean_s`, run by
run, and `error` its standard error. The ratios of the headline are ours over theirs: below 1, ours
is faster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, quantiles, stdev

from bench.routing.contenders import MIN_HEAP, OURS

Row = dict[str, object]
FIGURES = ("mean_s", "p90_s")


@dataclass(frozen=True, slots=True)
class Run:
    group_s: list[float]
    """Seconds of each group, from its first rollout's start to its last one's end."""
    moves: int
    """Times that a rollout continued on another engine."""

    @property
    def mean_s(self) -> float:
        return fmean(self.group_s)

    @property
    def p90_s(self) -> float:
        return quantiles(self.group_s, n=10, method="inclusive")[-1]


def rows(where: str, runs: Mapping[tuple[str, str], Sequence[Run]]) -> list[Row]:
    """Makes rows. `runs`: keyed by scenario and policy, in the same order of workloads."""
    return [
        {
            "where": where,
            "scenario": scenario,
            "policy": policy,
            "runs": len(these),
            "mean_s": round(fmean(run.mean_s for run in these), 3),
            "p90_s": round(fmean(run.p90_s for run in these), 3),
            **_compared(runs[scenario, OURS], these),
            "moves": round(fmean(run.moves for run in these), 1),
        }
        for (scenario, policy), these in runs.items()
    ]


def _compared(ours: Sequence[Run], these: Sequence[Run]) -> Row:
    ratios = [one.mean_s / this.mean_s for one, this in zip(ours, these, strict=True)]
    error = stdev(ratios) / sqrt(len(ratios)) if len(ratios) > 1 else None
    return {"ours_to_this": round(fmean(ratios), 4), "error": error and round(error, 4)}


def headline(rows: Sequence[Row]) -> dict[str, object]:
    places = list(dict.fromkeys(str(row["where"]) for row in rows))
    worst = {where: _worst(_at(rows, where=where)) for where in places}
    figures = {"worst_ratio_to_best_other": max(worst.values())}
    figures |= {f"worst_ratio_to_best_other_{where}": worst[where] for where in places}
    for scenario, key in (("one slow", "one_slow"), ("one added late", "added_late")):
        for where in places:
            means = _figures(_at(rows, where=where, scenario=scenario), "mean_s")
            figures[f"min_heap_ratio_{key}_{where}"] = round(means[OURS] / means[MIN_HEAP], 4)
    return dict(figures)


def _worst(rows: Sequence[Row]) -> float:
    scenarios = {str(row["scenario"]) for row in rows}
    return max(
        _ratio_to_best_other(_figures(_at(rows, scenario=scenario), figure))
        for scenario in scenarios
        for figure in FIGURES
    )


def _ratio_to_best_other(by_policy: Mapping[str, float]) -> float:
    others = [value for policy, value in by_policy.items() if policy != OURS]
    return round(by_policy[OURS] / min(others), 4)


def _figures(rows: Sequence[Row], figure: str) -> dict[str, float]:
    return {str(row["policy"]): float(str(row[figure])) for row in rows}


def _at(rows: Sequence[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if wanted.items() <= row.items()]
