"""The wire types of samplers: "give me 32 informative groups" as one request.

A sampler lives as long as a training run. Its client tops it up with candidate groups in the order
of the data, and draws informative ones, step by step; groups in flight when a draw is complete
continue, for the next. DAPO's dynamic sampling (arXiv 2503.14476), as a service.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from prorl_service.schemas import (
    MAX_GROUP_SIZE,
    MAX_INT32,
    MAX_LEASE_S,
    MAX_ROLLOUTS_PER_REQUEST,
    Difficulty,
    ErrorInfo,
    Group,
    GroupId,
    Id,
    WireModel,
)
from prorl_service.schemas.numbers import joint_mean

MAX_CANDIDATE_ID = 110
"""Most characters of a candidate's `group_id`: the sampler's id and the attempt are added."""

SAMPLER_ID = r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,59}$"
SamplerId = Annotated[str, Field(pattern=SAMPLER_ID)]


class Filter(WireModel):
    """The condition for an informative group: `metric` differs among its scored rollouts, and its
    mean lies within bounds. Rollouts that failed have no score."""

    metric: str = Field("reward", description="'reward', or a component of it.")
    min_std: float = Field(0.0, ge=0, description="The standard deviation must be above this.")
    min_mean: float | None = Field(None, description="The mean must not be below this.")
    max_mean: float | None = Field(None, description="The mean must not be above this.")
    lowest: float | None = Field(None, description="Lower bound of all scores, if there is one.")
    highest: float | None = Field(None, description="Upper bound of all scores, if there is one.")
    min_scored: int = Field(
        2, ge=2, le=MAX_GROUP_SIZE, description="A group with fewer scored rollouts has failed."
    )

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        for low, high in (("min_mean", "max_mean"), ("lowest", "highest")):
            lower, upper = getattr(self, low), getattr(self, high)
            if lower is not None and upper is not None and lower > upper:
                raise ValueError(f"{low} is above {high}")
        return self


class Curriculum(WireModel):
    """Passes candidates over whose difficulty was seldom informative lately. A candidate is begun
    with the probability (share of its difficulty) / (highest share). The share of a difficulty is
    (i + 1) / (g + 1): of its last `g` groups, `i` were informative."""

    window: int = Field(16, ge=1, le=1024, description="Most groups of a difficulty to look at.")
    seed: int = Field(0, ge=0, le=MAX_INT32, description="Seed of the choices.")


class SamplerSpec(WireModel):
    filter: Filter = Filter()
    groups_at_once: int | None = Field(
        None, ge=1, description="Most groups in flight; None: enough to keep RUN's workers busy."
    )
    oversubscription: float | None = Field(
        None,
        ge=1,
        description="Most groups in flight for each that a draw still lacks; None: no limit.",
    )
    groups_ahead: int = Field(
        0, ge=0, description="Informative groups to find between draws, ahead of the next."
    )
    surplus: Literal["carry", "cancel"] = Field(
        "carry",
        description="Groups in flight when a draw is complete are carried over to the next, or "
        "cancelled and begun again in a later draw.",
    )
    max_staleness: int = Field(
        1,
        ge=0,
        description="Policy versions by which the oldest sampled token may lag behind the newest.",
    )
    defer_after: int | None = Field(
        2,
        ge=1,
        description="Consecutive groups that taught nothing after which a task waits behind "
        "others; None: tasks keep their order.",
    )
    deferred_every: int = Field(
        8, ge=1, description="One group in this many is of a deferred task, if any waits."
    )
    curriculum: Curriculum | None = Field(
        None, description="Choice among candidates by difficulty; None: all are begun."
    )
    head_start: bool = Field(
        False,
        description="A group whose rollouts all failed begins once more, with turns of its task's "
        "`solution` or else of the best earlier rollout of the task, which are masked: fewer as "
        "such groups succeed. Its advantages are those of states that the policy does not reach by "
        "itself.",
    )
    lease_s: float | None = Field(
        None, gt=0, le=MAX_LEASE_S, description="Seconds without a request until it is deleted."
    )
    training: Id | None = Field(
        None,
        description="The training that it is for, by the header of the request; null: that which "
        "holds the policy. When another takes the policy, the sampler is deleted.",
    )
    run: Id | None = Field(
        None,
        description="Start of a trainer that it belongs to; other starts cannot join it.",
    )


class Candidates(WireModel):
    """Each `group_id` is a name within its sampler. Candidates must not set `lease_s`."""

    groups: list[Group] = Field(max_length=MAX_ROLLOUTS_PER_REQUEST)
    is_last: bool = Field(False, description="No more will come.")

    @field_validator("groups")
    @classmethod
    def _fit(cls, groups: list[Group]) -> list[Group]:
        if len({group.group_id for group in groups}) != len(groups):
            raise ValueError("every group needs a group_id of its own")
        for group in groups:
            if len(group.group_id) > MAX_CANDIDATE_ID:
                raise ValueError(f"a group_id is longer than {MAX_CANDIDATE_ID} characters")
            if group.n < 2:
                raise ValueError(f"group {group.group_id!r} has n=1: a filter compares rollouts")
            if group.only is not None:
                raise ValueError(f"group {group.group_id!r} has `only`: a filter needs them all")
            if group.lease_s is not None:
                raise ValueError("lease_s belongs to the sampler, not to its groups")
        return groups


class DrawSpec(WireModel):
    target: int = Field(ge=1, le=MAX_GROUP_SIZE, description="Informative groups wanted.")
    max_groups: int | None = Field(
        None, ge=1, description="Most groups to finish, informative or not."
    )
    deadline_s: float | None = Field(None, gt=0)
    policy_version: int | None = Field(
        None,
        ge=0,
        le=MAX_INT32,
        description="Version of the trainer's newest weights; None: the newest known here.",
    )


class DrawState(StrEnum):
    OPEN = "open"
    COMPLETE = "complete"
    EXHAUSTED = "exhausted"
    """No candidates are left, or `max_groups` were finished."""
    OVERDUE = "overdue"


class DrawnGroup(WireModel):
    """A group whose rollouts `GROUP_ID.0` to `GROUP_ID.n-1` have ended. `candidate`: the client's
    name for it."""

    group_id: GroupId
    candidate: GroupId
    n: int
    newest_policy_version: int | None = Field(None, description="Newest of its sampled tokens.")

    def rollout_ids(self) -> list[str]:
        return [f"{self.group_id}.{index}" for index in range(self.n)]


class DroppedGroup(WireModel):
    """A candidate that ended without being given."""

    candidate: GroupId
    reason: Literal["uninformative", "failed", "passed_over"] = Field(
        description="`passed_over`: the curriculum has not begun it."
    )
    score_mean: float | None = Field(description="Mean of its rollouts' scores, if any has one.")
    error: ErrorInfo | None = Field(None, description="Last error of its rollouts, if it failed.")


class DifficultyCounts(WireModel):
    """Counts of groups that ended, and of candidates passed over, of one difficulty."""

    difficulty: Difficulty
    informative: int = 0
    uninformative: int = 0
    failed: int = 0
    passed_over: int = 0
    scored: int = Field(0, description="Rollouts with a score.")
    score_mean: float | None = Field(None, description="Mean of those scores.")

    @property
    def informative_share(self) -> float | None:
        """Share of the groups that had scores enough for a verdict."""
        decided = self.informative + self.uninformative
        return self.informative / decided if decided else None

    def plus(self, other: Self) -> Self:
        """Returns the sum of both counts of the same difficulty."""
        return self.model_copy(
            update={
                "informative": self.informative + other.informative,
                "uninformative": self.uninformative + other.uninformative,
                "failed": self.failed + other.failed,
                "passed_over": self.passed_over + other.passed_over,
                "scored": self.scored + other.scored,
                "score_mean": joint_mean((one.scored, one.score_mean) for one in (self, other)),
            }
        )


def summed(counts: Iterable[DifficultyCounts]) -> list[DifficultyCounts]:
    """Returns one sum for each difficulty, in the order of their first counts."""
    sums: dict[Difficulty, DifficultyCounts] = {}
    for one in counts:
        known = sums.get(one.difficulty)
        sums[one.difficulty] = known.plus(one) if known else one
    return list(sums.values())


class Draw(WireModel):
    """`groups`, in the order in which they ended, and `dropped` are final once the draw is not
    open. Acknowledge the groups once they have been received."""

    draw_id: Id
    spec: DrawSpec
    state: DrawState = DrawState.OPEN
    groups: list[DrawnGroup] = Field(default_factory=list)
    dropped: list[DroppedGroup] = Field(
        default_factory=list,
        description="Candidates dropped since the draw before ended. Each is in one draw only.",
    )
    finished: int = Field(0, description="Groups that ended during the draw, informative or not.")
    difficulties: list[DifficultyCounts] = Field(
        default_factory=list,
        description="Counts since the draw before ended, for each difficulty that tasks name.",
    )


class SamplerStatus(WireModel):
    """Counts of groups: totals since the sampler began, except `wanted`, `waiting`, `deferred`,
    `under_way` and `informative`, which are current."""

    sampler_id: SamplerId
    revision: int = Field(description="Grows with every change.")
    wanted: int = Field(description="Candidates that it asks for now.")
    waiting: int = Field(description="Candidates not begun.")
    deferred: int = Field(description="Waiting candidates that wait behind others.")
    under_way: int
    informative: int = Field(description="Informative, and not given to a draw yet.")
    given: int
    uninformative: int = Field(description="Ended with all scores equal, or a mean out of bounds.")
    failed: int = Field(description="Ended with too few rollouts scored.")
    stale: int = Field(description="Begun again, since their tokens had become too old.")
    decided_early: int = Field(description="Stopped when they could no longer be informative.")
    carried: int = Field(description="Begun in one draw and given to a later one.")
    passed_over: int = Field(0, description="Not begun, by the curriculum's choice.")
    head_started: int = Field(0, description="Begun once more, with a head start.")
    scored: int = Field(0, description="Rollouts with a score, of all groups that ended.")
    score_mean: float | None = Field(None, description="Mean of those scores.")
    last_failure: ErrorInfo | None = Field(None, description="Error of the last failed rollout.")
    draw: Draw | None = Field(None, description="The newest draw.")
