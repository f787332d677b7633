"""The past, for charts: the service's load over a day, and trainers' own metrics."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from prorl_service.schemas.base import MAX_INT32, WireModel

MAX_METRICS = 512
"""Most metrics of one step."""
MetricName = Annotated[str, Field(min_length=1, max_length=200)]


class Load(StrEnum):
    """Figures of a sample. A point of several samples has their mean."""

    ENDED = "ended_per_s"
    """Rollouts ended in a second, whichever way."""
    FAILED = "failed_per_s"
    SAMPLED = "sampled_tokens_per_s"
    """Tokens that engines answered with in a second; null for a front, whose services sample."""
    INIT_RUNNING = "init_running"
    RUN_RUNNING = "run_running"
    EVAL_RUNNING = "eval_running"
    INIT_QUEUED = "init_queued"
    """Rollouts waiting for a worker of INIT."""
    RUN_QUEUED = "run_queued"
    EVAL_QUEUED = "eval_queued"
    CALLS = "engine_calls"
    """Model calls in flight."""
    CALLS_WAITING = "engine_waiting"
    """Model calls waiting within engines; null while none tells."""
    CACHE_USE = "cache_use"
    """Mean share of the engines' KV caches in use; null while none tells."""
    LAG = "loop_lag_s"
    """Longest delay of the event loop within a minute; the longest of several samples."""


class History(WireModel):
    """Points in order of time, in columns. A service that was not running has left none."""

    step_s: float = Field(description="Seconds that a point stands for.")
    at: list[float] = Field(description="Unix time of each point, in seconds.")
    load: dict[Load, list[float | None]] = Field(description="Figures of each point.")


class TrainerStep(WireModel):
    """A trainer's own metrics of one of its steps."""

    step: int = Field(ge=0, le=MAX_INT32, description="The trainer's number of the step.")
    policy_version: int | None = Field(
        None,
        ge=0,
        le=MAX_INT32,
        description="Version whose rollouts it trained on; null: the newest that the service has.",
    )
    metrics: dict[MetricName, float] = Field(
        min_length=1,
        max_length=MAX_METRICS,
        description="By the trainer's names. Those of an earlier report of the step are kept.",
    )


class MetricCurve(WireModel):
    """A trainer's metric by policy version, in columns. Long ones are means of several versions."""

    policy_versions: list[int]
    values: list[float]
