"""Actions that take turns, and the figures of their times."""

import inspect
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from bench.frame import Row, find

Key = TypeVar("Key", bound=Hashable)
Action = Callable[[], Awaitable[object] | object]


@dataclass(frozen=True, slots=True)
class Effort:
    """A turn ends after `turn_actions` or `turn_s`, whichever is first."""

    rounds: int = 12
    turn_actions: int = 40
    turn_s: float = 0.15


QUICK = Effort(rounds=2, turn_actions=20, turn_s=0.05)


async def take_turns(actions: Mapping[Key, Action], effort: Effort) -> dict[Key, list[float]]:
    """Returns the milliseconds of each action, of all its turns; at least one per round."""
    times: dict[Key, list[float]] = {key: [] for key in actions}
    order = list(actions)
    rng = random.Random(0)
    for _ in range(effort.rounds):
        rng.shuffle(order)
        for key in order:
            times[key] += await _turn(actions[key], effort)
    return times


async def compared(actions: Mapping[tuple[str, str], Action], quick: bool) -> list[Row]:
    """Has actions take turns, each by its contender and what it does; returns their rows."""
    times = await take_turns(actions, QUICK if quick else Effort())
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
