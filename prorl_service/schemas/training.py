"""A run by policy version: what training got of it, and what the trainer measured."""

from pydantic import Field

from prorl_service.schemas.base import WireModel
from prorl_service.schemas.history import MetricCurve
from prorl_service.schemas.rollouts import Blame, FinishReason
from prorl_service.schemas.views import GroupOutcome


class VersionRow(WireModel):
    """Ended rollouts of one policy version, and groups whose newest rollout is of that version."""

    policy_version: int
    rollouts: int
    done: int
    failed: int
    cancelled: int
    failures: dict[Blame, int] = Field(default_factory=dict)
    finish_reasons: dict[FinishReason, int] = Field(default_factory=dict)
    mean_reward: float | None = None
    success_rate: float | None = Field(
        None, description="Share of rollouts with a reward whose reward is 1 or more."
    )
    mean_turns: float | None = Field(None, description="Mean over rollouts that sampled.")
    mean_sampled_tokens: float | None = None
    sampled_tokens: int
    wasted_tokens: int = Field(description="Sampled by rollouts that failed or were cancelled.")
    mean_staleness: float | None = None
    max_staleness: int | None = None
    groups: int = Field(description="Groups whose rollouts have all ended.")
    outcomes: dict[GroupOutcome, int] = Field(default_factory=dict)
    informative_share: float | None = Field(
        None, description="Share of groups with rewards that are informative."
    )
    first_ended_at: float | None = None
    last_ended_at: float | None = None


class Training(WireModel):
    """A row for each policy version, oldest first."""

    run: str
    versions: list[VersionRow]
    metric_names: list[str] = Field(
        default_factory=list, description="All metrics that the run's trainer has reported."
    )
    metrics: dict[str, MetricCurve] = Field(
        default_factory=dict, description="Those that were asked for, by name."
    )
    notice: str = ""


class Runs(WireModel):
    """Runs that `training` and `tasks` can show: those of the service's shelf, and of other shelves
    next to it."""

    runs: list[str] = Field(description="The service's own first.")
