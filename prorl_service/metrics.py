"""Events that the service counts about itself. `server.metrics` adds what is true right now.

This is the lowest layer, so that every layer can count. The counters belong to the process, as
prometheus_client intends: two services in one process share them. No label comes from a model's or
a client's words, which could add labels without bound. An observation takes about one microsecond
and never blocks, so no asyncio variant of the library is needed.
"""

import logging
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from prorl_service.schemas import (
    TERMINAL_STATES,
    Blame,
    EngineTimes,
    ErrorInfo,
    RolloutState,
    Stage,
)

log = logging.getLogger(__name__)

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry()

WINDOW = 32
"""Ended rollouts in one window of the alarm. Cancelled ones are not counted."""


class TraceOutcome(StrEnum):
    EXPORTED = "exported"
    REFUSED = "refused"
    DROPPED = "dropped"


_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LONG_S = (0.01, 0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 3600)

_ENDED = Counter("prorl_rollouts_ended", "Rollouts ended.", ["state"], registry=REGISTRY)
_FAILURES = Counter(
    "prorl_rollout_failures", "Failed rollouts, by blame.", ["blame"], registry=REGISTRY
)
_STAGE_S = Histogram(
    "prorl_stage_seconds", "Time in a stage.", ["stage"], buckets=_LONG_S, registry=REGISTRY
)
_QUEUE_S = Histogram(
    "prorl_queue_seconds",
    "Time waited for a stage's worker.",
    ["stage"],
    buckets=_LONG_S,
    registry=REGISTRY,
)
_MODEL_S = Histogram(
    "prorl_model_call_seconds", "Time of one model call.", buckets=_LONG_S, registry=REGISTRY
)
_ENGINE_S = Histogram(
    "prorl_engine_call_seconds",
    "Time of one model call within its engine, by phase, where answers tell it.",
    ["phase"],
    buckets=_SHORT_S,
    registry=REGISTRY,
)
_TOOL_S = Histogram(
    "prorl_tool_seconds", "Time of one tool call.", ["tool"], buckets=_SHORT_S, registry=REGISTRY
)
_SAMPLED = Counter("prorl_sampled_tokens", "Tokens sampled.", registry=REGISTRY)
_PROMPT = Counter("prorl_prompt_tokens", "Prompt tokens of all model calls.", registry=REGISTRY)
_CACHED = Counter(
    "prorl_cached_tokens", "Prompt tokens that engines had cached.", registry=REGISTRY
)
_FAILOVERS = Counter(
    "prorl_failovers", "Model calls that failed and were retried elsewhere.", registry=REGISTRY
)
_USELESS_WINDOWS = Counter(
    "prorl_useless_windows",
    f"Windows of {WINDOW} ended rollouts that all failed or sampled nothing.",
    registry=REGISTRY,
)
_TRACED = Counter(
    "prorl_traced_rollouts",
    "Rollouts whose spans were exported, were refused by the collector, or found the queue full.",
    ["outcome"],
    registry=REGISTRY,
)
_SPANS = Counter("prorl_exported_spans", "Spans that the collector has taken.", registry=REGISTRY)
LOOP_LAG_S = Histogram(
    "prorl_event_loop_lag_seconds",
    "How late the event loop woke a timer.",
    buckets=_SHORT_S,
    registry=REGISTRY,
)


for _state in TERMINAL_STATES:  # a rate needs a first sample, before anything has happened
    _ENDED.labels(_state.value)
for _blame in Blame:
    _FAILURES.labels(_blame.value)
for _outcome in TraceOutcome:
    _TRACED.labels(_outcome.value)


def stage_done(stage: Stage, *, waited_s: float, took_s: float) -> None:
    _QUEUE_S.labels(stage.value).observe(waited_s)
    _STAGE_S.labels(stage.value).observe(took_s)


def model_called(
    *, prompt: int, sampled: int, cached: int, took_s: float, times: EngineTimes | None
) -> None:
    """`prompt`, `sampled` and `cached` are in tokens. `times`: the engine's own, if it tells."""
    _PROMPT.inc(prompt)
    _SAMPLED.inc(sampled)
    _CACHED.inc(cached)
    _MODEL_S.observe(took_s)
    if times is not None:
        _ENGINE_S.labels("queue").observe(times.queue_s)
        _ENGINE_S.labels("prefill").observe(times.prefill_s)
        _ENGINE_S.labels("decode").observe(times.decode_s)


def call_failed_over() -> None:
    _FAILOVERS.inc()


def tool_called(tool: str, *, took_s: float) -> None:
    """Counts a tool call. `tool` must be a known tool's name, not what a model wrote."""
    _TOOL_S.labels(tool).observe(took_s)


def rollout_traced(outcome: TraceOutcome, *, spans: int = 0) -> None:
    """`spans`: those of it that the collector has taken."""
    _TRACED.labels(outcome.value).inc()
    _SPANS.inc(spans)


def rollout_ended(state: RolloutState, error: ErrorInfo | None, *, sampled: bool) -> None:
    """`sampled`: whether the rollout sampled more than ends of turns."""
    _ENDED.labels(state.value).inc()
    if error is not None:
        _FAILURES.labels(error.blame.value).inc()
    if state is not RolloutState.CANCELLED:
        _window.add(error, is_useful=state is RolloutState.DONE and sampled)


class _Window:
    """Fills with ended rollouts, then starts again from zero."""

    def __init__(self) -> None:
        self._ended = self._useful = 0

    def add(self, error: ErrorInfo | None, *, is_useful: bool) -> None:
        self._ended += 1
        self._useful += is_useful
        if self._ended < WINDOW:
            return
        if not self._useful:
            _USELESS_WINDOWS.inc()
            last = f"blame {error.blame.value}: {error.message}" if error else "nothing sampled"
            log.error(
                "the last %d rollouts all failed or sampled nothing; the last: %s", WINDOW, last
            )
        self._ended = self._useful = 0


_window = _Window()
