"""What `prorl top` shows: rates, stages, engines, failures of the last minute, rollouts. Pure.

Each line is cut to the terminal's width, each table to the lines that are left.
"""

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from prorl_service.cli.lists import table_of
from prorl_service.cli.status import BAD, heading
from prorl_service.cli.wording import STYLES, ago, counts, duration, number, waits_for
from prorl_service.schemas import BackendState, BackendStatus, ServiceStatus, Stage
from prorl_service.schemas.views import RolloutRow, RolloutSort
from prorl_service.utils.visible import visible_line

RATE_S = 60.0
"""Seconds over which rates and failures are counted."""
MOST_ENGINES, MOST_FAILURES = 6, 4
SORTS = (RolloutSort.OLDEST, RolloutSort.LONGEST, RolloutSort.MOST_TURNS, RolloutSort.MOST_TOKENS)
KEYS = "q quit  s sort  f failures  up/down enter show"


class Rates:
    """Growth of the service's counts, of late."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, ServiceStatus]] = deque()

    def add(self, at: float, now: ServiceStatus) -> None:
        if self._looks and now.started_at != self._looks[-1][1].started_at:
            self._looks.clear()  # the service has started again
        self._looks.append((at, now))
        while at - self._looks[0][0] > RATE_S:
            self._looks.popleft()

    def line(self) -> str:
        """Returns a line; empty until the second look."""
        seconds, then, now = self._span()
        if not seconds:
            return ""
        ended = sum(now.ended.values()) - sum(then.ended.values())
        failed = counts(
            {one.value: n - then.failures.get(one, 0) for one, n in now.failures.items()}
        )
        rates = [rate for one in now.backends if (rate := self.tokens_per_s(one)) is not None]
        return (
            f"{ended / seconds:.2f} rollouts/s, {sum(rates):,.0f} tokens/s, failed: {failed}"
            f" in the last {seconds:.0f} s"
        )

    def tokens_per_s(self, engine: BackendStatus) -> float | None:
        """Returns the engine's rate; None while it is not known."""
        seconds, then, _ = self._span()
        before = {one.backend_id: one.sampled_tokens for one in then.backends} if seconds else {}
        sampled = engine.sampled_tokens - before.get(engine.backend_id, engine.sampled_tokens + 1)
        return sampled / seconds if sampled >= 0 else None

    def _span(self) -> tuple[float, ServiceStatus, ServiceStatus]:
        (start, then), (stop, now) = self._looks[0], self._looks[-1]
        return stop - start, then, now


@dataclass(slots=True)
class TopView:
    """What is shown, and what keys have chosen."""

    url: str
    status: ServiceStatus | None = None
    running: Sequence[RolloutRow] = ()
    failed: Sequence[RolloutRow] = ()
    """Newest failures."""
    problem: str = ""
    rates: Rates = field(default_factory=Rates)
    sort: RolloutSort = SORTS[0]
    is_failures_only: bool = False
    selected: int = 0

    @property
    def listed(self) -> Sequence[RolloutRow]:
        return self.failed if self.is_failures_only else self.running

    @property
    def chosen(self) -> RolloutRow | None:
        return self.listed[self.selected] if self.selected < len(self.listed) else None

    def press(self, key: str) -> None:
        match key:
            case "s":
                self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
            case "f":
                self.is_failures_only = not self.is_failures_only
            case "up" | "down":
                step = 1 if key == "down" else -1
                self.selected = max(0, min(len(self.listed) - 1, self.selected + step))
                return
        self.selected = 0

    def page(self, height: int) -> RenderableType:
        parts: list[RenderableType] = []
        if self.status is not None:
            parts += self._head(self.status)
        if self.problem:
            parts.append(_line(f"{visible_line(self.url)}: {self.problem}", BAD))
        if self.status is not None:
            used = len(parts)
            engines = _engines(self.status.backends, self.rates)
            recent = [] if self.is_failures_only else self._recent()
            used += engines.row_count + bool(engines.row_count) + len(recent) + 2
            parts += [engines, *recent, self._rollouts(max(1, height - used))]
        return Stack(*parts, _line(KEYS, "dim"))

    def _head(self, now: ServiceStatus) -> Iterator[Text]:
        head = heading(self.url, now)
        yield _line(f"{head.name}: {head.text}", head.style)
        yield _line(self.rates.line() or "rates follow")
        stages = (
            f"{stage.value.upper()} {now.running.get(stage, 0)} of {workers},"
            f" {now.queues.get(stage.value, 0)} waiting"
            for stage in Stage
            if (workers := now.workers.get(stage)) is not None
        )
        yield _line("; ".join(stages))

    def _recent(self) -> list[Text]:
        """Returns the failures of the last minute, the newest first."""
        since = time.time() - RATE_S
        rows = [row for row in self.failed if row.ended_at is not None and row.ended_at > since]
        rows.sort(key=lambda row: row.ended_at or 0.0, reverse=True)
        blames = Counter(row.error.blame.value for row in rows if row.error is not None)
        lines = [_line(f"failed in the last minute: {counts(blames)}", BAD)] if rows else []
        return lines + [_line(f"  {_failure(row)}", "red") for row in rows[:MOST_FAILURES]]

    def _rollouts(self, most: int) -> Table:
        first = max(0, self.selected - most + 1)
        order = self.sort.value.replace("_", " ")
        what = "failed, newest first" if self.is_failures_only else f"at work, {order} first"
        table = table_of("", what, "*turns", "for", "what")
        for place, row in enumerate(self.listed[first : first + most], first):
            is_chosen = place == self.selected
            style = "reverse" if is_chosen else STYLES.get(row.state.value, "")
            name, turns = visible_line(row.rollout_id), str(row.turns or 0)
            table.add_row(">" * is_chosen, name, turns, *_doing(row), style=style)
        return table


def _doing(row: RolloutRow) -> tuple[str, str]:
    """Returns for how long, and what a rollout does or why it failed."""
    if (now := row.activity) is None:
        return ago(row.ended_at), _why(row) if row.error is not None else row.state.value
    stage = f"{'waits for ' * now.is_queued}{now.stage.value.upper()}"
    budget = f" of {duration(now.budget_s)}" if now.budget_s is not None else ""
    return duration(now.took_s), f"{stage}{budget}; waits for {waits_for(now)}"


def _why(row: RolloutRow) -> str:
    assert row.error is not None
    return f"{row.error.blame.value}: {visible_line(row.error.message, limit=300)}"


def _failure(row: RolloutRow) -> str:
    why = _why(row) if row.error is not None else ""
    return f"{visible_line(row.rollout_id)}, {ago(row.ended_at)}, {why}"


def _engines(engines: Sequence[BackendStatus], rates: Rates) -> Table:
    """Lays out the engines: those that are down first, then the slowest by call."""
    table = table_of("engine", "state", "*calls", "*tokens/s", "*version", "*cached", "why")

    def speed(one: BackendStatus) -> tuple[bool, float]:
        rate = rates.tokens_per_s(one)
        is_idle = rate is None or not one.in_flight
        return one.state is BackendState.HEALTHY, 1e9 if is_idle else (rate or 0.0) / one.in_flight

    for one in sorted(engines, key=speed)[:MOST_ENGINES]:
        rate = rates.tokens_per_s(one)
        table.add_row(
            visible_line(one.backend_id),
            one.state.value,
            f"{one.in_flight}{'' if one.max_calls is None else f' of {one.max_calls}'}",
            "" if rate is None else number(round(rate)),
            str(one.policy_version),
            f"{one.cached_tokens / one.prompt_tokens:.0%}" if one.prompt_tokens else "",
            visible_line(one.reason, limit=200),
            style="" if one.state is BackendState.HEALTHY else "red",
        )
    return table


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")
