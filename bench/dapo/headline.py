"""The figures of a contender's runs, and those that are quoted."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from bench.dapo.contenders import LENT, OURS, REQUEUE, SYNC, SYNC_3T
from bench.dapo.strategies import Fate
from bench.dapo.training import Run

Row = dict[str, object]
Runs = Mapping[str, Sequence[Run]]
"""Runs, keyed by contender, all in the same order of seeds."""

SPENT = (Fate.WASTED, Fate.UNINFORMATIVE, Fate.LEFT)


def row(name: str, runs: Sequence[Run]) -> Row:
    """Makes a row. Rates are medians of the runs; all else is of all runs together."""

    def rate(seconds: Callable[[Run], float]) -> float:
        return round(median(60 * len(run.given) / seconds(run) for run in runs), 1)

    given = [group for run in runs for group in run.given]
    turns = sum((run.turns for run in runs), Counter[Fate]())
    return {
        "who": name,
        "groups_per_min": rate(lambda run: run.wall_s),
        "groups_per_min_without_pauses": rate(lambda run: run.sampling_s),
        **{fate.value: round(turns[fate] / turns.total(), 3) for fate in SPENT},
        "turns_per_group": round(turns.total() / len(given), 1),
        "busy": round(fmean(busy for run in runs for _, busy in run.busy), 2),
        "staleness_max": max(group.staleness for group in given),
        "staleness_mean": round(fmean(group.staleness for group in given), 2),
        "turns_given": round(mean_turns_given(runs), 2),
        "turn_ms": round(1e3 * sum(one.run_s for one in given) / sum(one.turns for one in given)),
    }


def groups_per_min(run: Run) -> float:
    return 60 * len(run.given) / run.wall_s


def mean_turns_given(runs: Sequence[Run]) -> float:
    """Returns the mean turns of a rollout."""
    given = [group for run in runs for group in run.given]
    return sum(group.turns for group in given) / sum(group.rollouts for group in given)


def headline(runs: Runs) -> Row:
    """Makes the headline. Ratios are medians over the seeds, of groups per minute with the pauses.
    The better of the two sizes of synchronous batches counts. A length bias is the ratio of the
    mean turns given to that of the batches, which favour no length, minus 1."""

    def ratio(*others: str, of: str = OURS) -> float:
        ratios = [
            groups_per_min(ours) / max(map(groups_per_min, theirs))
            for ours, *theirs in zip(*(runs[name] for name in (of, *others)), strict=True)
        ]
        return round(median(ratios), 2)

    def length_bias(name: str) -> float:
        return round(mean_turns_given(runs[name]) / mean_turns_given(runs[SYNC]) - 1, 3)

    ours = row(OURS, runs[OURS])
    return {
        "informative_groups_per_min_vs_sync": ratio(SYNC, SYNC_3T),
        "informative_groups_per_min_vs_requeue": ratio(REQUEUE),
        "engines_lent_vs_sync": ratio(SYNC, SYNC_3T, of=LENT),
        "engines_lent_vs_requeue": ratio(REQUEUE, of=LENT),
        "wasted_turns_share": ours["wasted"],
        "requeue_wasted_turns_share": row(REQUEUE, runs[REQUEUE])["wasted"],
        "left_at_the_end_share": ours["left"],
        "max_staleness_seen": ours["staleness_max"],
        "length_bias": length_bias(OURS),
        "requeue_length_bias": length_bias(REQUEUE),
    }
