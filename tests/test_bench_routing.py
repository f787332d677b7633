"""The figures quoted from `bench.routing`: the worst ratio, and the contender it is to."""

from bench.routing.__main__ import MIN_HEAP, OURS, headline, rows
from bench.routing.simulate import Run

OTHER = "round robin"
ALIKE = [6.0] * 11


def test_the_worst_ratio_is_to_the_best_other_of_mean_and_p90() -> None:
    late_ours = [*[5.0] * 9, 9.0, 9.0]
    runs = {
        ("one slow", OURS): [Run([2.0] * 11, 3), Run([4.0] * 11, 1)],
        ("one slow", MIN_HEAP): [Run([20.0] * 11, 0), Run([40.0] * 11, 0)],
        ("one slow", OTHER): [Run(ALIKE, 0), Run(ALIKE, 0)],
        ("one added late", OURS): [Run(late_ours, 0), Run(late_ours, 0)],
        ("one added late", MIN_HEAP): [Run([12.0] * 11, 0), Run([12.0] * 11, 0)],
        ("one added late", OTHER): [Run(ALIKE, 0), Run(ALIKE, 0)],
    }
    table = rows(runs)
    assert table[0] | {"moves": 2.0} == table[0]
    assert table[1]["ours_to_this"] == 0.1
    assert table[1]["error"] == 0.0
    assert headline(table) == {"worst_ratio_to_best_other": 1.5}
