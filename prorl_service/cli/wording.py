"""Words for what commands show: calls of tools, times, sizes, reports. Pure.

Text of models, tools and services is given on one line, or as it is for a block behind a margin;
who prints it makes it visible.
"""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from prorl_service.schemas import FinishReason, Stage, Timings
from prorl_service.schemas.activity import Activity, WaitsFor
from prorl_service.utils.visible import visible_line

STYLES = {"done": "green", "failed": "bold red", "cancelled": "yellow"}
"""Colours of states."""
SHORT_CHARS = 100
"""Longest argument that stands on the line of its call."""


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Returns a call's name, and its arguments by line."""
    name = visible_line(name, limit=60)
    values = {visible_line(key): _value(value) for key, value in arguments.items()}
    if len(values) == 1:
        [(key, value)] = values.items()
        if "\n" not in value and len(value) <= SHORT_CHARS:
            return f"{name}  {key}: {value}"
    lines = [name]
    for key, value in values.items():
        first, *rest = value.split("\n")
        lines += [f"  {key}: {first}", *(f"    {line}" for line in rest)]
    return "\n".join(lines)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def json_text(report: Any) -> str:
    return json.dumps(report, ensure_ascii=False, indent=2)


def stage_times(timings: Timings) -> list[str]:
    parts = [
        f"{stage.value.upper()} {getattr(timings, f'{stage.value}_s'):.2f} s" for stage in Stage
    ]
    if timings.queue_s + timings.waited_s >= 0.01:
        parts.append(f"waiting {timings.queue_s + timings.waited_s:.2f} s")
    return parts


def counts(named: Mapping[str, int]) -> str:
    return listed(f"{count} {visible_line(name)}" for name, count in named.items() if count)


def listed(parts: Iterable[str]) -> str:
    return ", ".join(parts) or "none"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def duration(seconds: float) -> str:
    """Returns the two greatest units of a duration."""
    left = max(0, round(seconds))
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    parts: list[str] = []
    for name, size in units:
        count, left = divmod(left, size)
        if count or parts or name == "s":
            parts.append(f"{count} {name}")
        if len(parts) == 2:
            break
    return " ".join(parts)


def ago(at: float | None) -> str:
    """Returns how long ago a Unix time was."""
    return "" if at is None else f"{duration(time.time() - at)} ago"


def megabytes(size: int) -> str:
    return f"{size / 2**20:.1f}" if size < 10 * 2**20 else f"{size / 2**20:.0f}"


def waits_for(activity: Activity) -> str:
    """Returns what a rollout waits for, and since when."""
    words = WAITS.get(activity.waits_for, "") or f"tool {visible_line(activity.tool, limit=60)}"
    return f"{words}, {duration(activity.waits_s)}"


def doing(activity: Activity) -> str:
    """Returns what an unfinished rollout does, for how long, and what it waits for."""
    stage = activity.stage.value.upper()
    where = f"queued for {stage}" if activity.is_queued else stage
    used = ""
    if activity.budget_s is not None:
        used = f" ({duration(activity.worked_s)} of {duration(activity.budget_s)} allowed)"
    took = duration(activity.took_s)
    return f"{where} for {took}{used}; waits for {waits_for(activity)}"


WAITS: Mapping[WaitsFor, str] = {
    WaitsFor.WORKER: "a free worker",
    WaitsFor.ENGINE: "an engine (slot, cache or new weights)",
    WaitsFor.MODEL: "the model's reply",
    WaitsFor.AGENT: "the agent's code",
    WaitsFor.SERVICE: "the service (a scoring process, or a turn to be saved)",
}
MEANINGS: Mapping[FinishReason, str] = {
    FinishReason.MAX_TURNS: "it used up its turns before it finished",
    FinishReason.LENGTH: "it used up its tokens before it finished",
    FinishReason.TIMEOUT: "it used up the time of RUN before it finished",
    FinishReason.ERROR: "the agent's loop ended with an error",
}
"""Meaning of a finish reason for the verdict; `finished` needs no explanation."""
