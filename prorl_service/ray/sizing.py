"""How many nodes the demand calls for. Pure: the caller brings the clock.

Grows to the mean demand of the last minute, and shrinks only to what the last minute's highest
demand would fill: a short dip removes no node, and a number between two does not flap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

WINDOW_S = 60.0
ROUNDING = 1e-6
"""Part of a node that a mean may exceed by rounding."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Rollouts that run or could run, from a time on until the next demand."""

    at_s: float
    rollouts: int


def wanted(
    demands: Sequence[Demand],
    *,
    now_s: float,
    slots: int,
    current: int,
    least: int,
    most: int,
    window_s: float = WINDOW_S,
) -> int:
    """Returns a number of nodes from `least` to `most`.

    `demands`: in the order of time; `slots`: rollouts that keep a node busy; `current`: nodes
    wanted before. Without demands, `current` stays within its bounds.
    """
    recent = within(demands, now_s - window_s)
    if recent:
        filled = max(one.rollouts for one in recent)
        grown = ceil(min(_mean(recent, now_s), filled) / slots - ROUNDING)
        current = min(max(current, grown), ceil(filled / slots))
    return min(max(current, least), most)


def within(demands: Sequence[Demand], start_s: float) -> list[Demand]:
    """Returns the demands since `start_s`, with the one that held then."""
    later = [one for one in demands if one.at_s > start_s]
    before = [one for one in demands if one.at_s <= start_s]
    return [Demand(start_s, before[-1].rollouts), *later] if before else later


def _mean(demands: Sequence[Demand], now_s: float) -> float:
    """Returns the mean over time, each demand for as long as it held."""
    ends = [*(one.at_s for one in demands[1:]), now_s]
    spans = [end - one.at_s for one, end in zip(demands, ends, strict=True)]
    if sum(spans) <= 0:
        return demands[-1].rollouts
    return sum(one.rollouts * span for one, span in zip(demands, spans, strict=True)) / sum(spans)
