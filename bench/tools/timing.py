"""Actions that take turns, and the figures of their times."""

import inspect
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.frame import Row, find

Action = Callable[[], Awaitable[object] | object]


@dataclass(frozen=True, slots=True)
class Effort:
    """A turn ends after `turn_actions` or `turn_s`, whichever is first."""

    rounds: int
    turn_actions: int
    turn_s: float


FULL, QUICK = Effort(12, 40, 0.15), Effort(2, 20, 0.05)


async def compared(actions: Mapping[tuple[str, str], Action], quick: bool) -> list[Row]:
    """Has actions take turns, each by its contender and what it does; returns their rows."""
    effort = QUICK if quick else FULL
    times: dict[tuple[str, str], list[float]] = {key: [] for key in actions}
    rng = random.Random(0)
    for _ in range(effort.rounds):
        for key in rng.sample([*actions], len(actions)):
            times[key] += await _turn(actions[key], effort)
    return [row(who, what, times[who, what]) for who, what in actions]


async def _turn(action: Action, effort: Effort) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + effort.turn_s
    while not times or (len(times) < effort.turn_actions and time.perf_counter() < end):
        times.append(await timed_ms(action))
    return times


async def timed_ms(action: Action) -> float:
    started = time.perf_counter()
    await finished(action())
    return 1e3 * (time.perf_counter() - started)


async def finished(result: object) -> object:
    """Returns the result of a call, whether it blocks or is awaited."""
    return await result if inspect.isawaitable(result) else result


def row(who: str, what: str, times_ms: Sequence[float], **more: object) -> Row:
    """Makes one line of the results."""
    p50_ms = round(median(times_ms), 4)
    return {"who": who, "what": what, "n": len(times_ms), "p50_ms": p50_ms, **more}


def p50(rows: Sequence[Row], who: str, what: str) -> float:
    return float(find(rows, who=who, what=what)["p50_ms"])


def ratio(above: float, below: float) -> float:
    return round(above / below, 3)
