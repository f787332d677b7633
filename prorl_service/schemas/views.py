"""Types for people's views: rows of groups and rollouts, one rollout as text, its tokens, agents.

Rows never hold tokens. Text is what models, tools and agents wrote: show it as plain text only.
"""

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from prorl_service.schemas.activity import Activity
from prorl_service.schemas.base import MAX_INT32, Choice, WireModel
from prorl_service.schemas.groups import Limits, Message, Task
from prorl_service.schemas.rollouts import (
    Blame,
    EngineTimes,
    ErrorInfo,
    FinishReason,
    Replay,
    Resumption,
    RolloutState,
    Sampling,
    Stage,
    StopReason,
    Timings,
)
from prorl_service.schemas.text_search import Excerpt, SearchText

MAX_ROWS = 500
MAX_TOKENS = 4096
"""Most tokens in one slice."""


class GroupOutcome(Choice):
    """Classes of groups by their rewards. Rollouts without a reward do not count."""

    OPEN = "open"
    """Some of its rollouts have not ended."""
    INFORMATIVE = "informative"
    ALL_ZERO = "all_zero"
    ALL_ONE = "all_one"
    ALL_EQUAL = "all_equal"
    """All rewards are equal, but not 0 or 1."""
    UNSCORED = "unscored"
    """No rollout has a reward."""


class KeptFor(StrEnum):
    """Reasons for which the shelf keeps a group whole."""

    FAILED = "failed"
    FIRST = "first"
    """Among the first groups of its policy version."""
    SAMPLE = "sample"


# --- lists --------------------------------------------------------------------------------------


class RowFilter(WireModel):
    """Conditions joined by AND; several values of one condition are joined by OR."""

    run: str | None = Field(
        None, description="Only rollouts of this run (default: all that the service knows)."
    )
    agent: list[str] = Field(default_factory=list, description="Only rollouts of this agent.")
    client: str | None = Field(None, description="Only rollouts that this client submitted.")
    task_id: str | None = Field(
        None, description="Only rollouts of this task; `*` stands for any text: `q1*`."
    )
    group_id: str | None = Field(None, description="Only rollouts of this group; `*` as above.")
    state: list[RolloutState] = Field(
        default_factory=list, description="Only rollouts in this state."
    )
    blame: list[Blame] = Field(
        default_factory=list, description="Only rollouts whose failure was this one's fault."
    )
    finish_reason: list[FinishReason] = Field(
        default_factory=list, description="Only rollouts that ended for this reason."
    )
    policy_version: int | None = Field(
        None, ge=0, le=MAX_INT32, description="Only rollouts of this policy version."
    )
    reward_min: float | None = Field(
        None, description="Only rollouts with at least this reward; of groups, the mean counts."
    )
    reward_max: float | None = Field(None, description="Only rollouts with at most this reward.")
    text: SearchText | None = Field(
        None,
        description="Only rollouts in which these words follow each other: in prompt, replies, "
        "calls, their outputs, error or report. The last one may be the beginning of a word.",
    )
    created_before: float | None = Field(
        None, description="Only rollouts created until this Unix time."
    )
    ended_after: float | None = Field(
        None, description="Only rollouts that had not ended by this Unix time, or have not at all."
    )


class RowQuery(RowFilter):
    limit: int = Field(100, ge=1, le=MAX_ROWS)
    before: str | None = Field(None, max_length=1000, description="`next` of the previous page.")


class RolloutSort(StrEnum):
    """Orders of a list of rollouts. All but the first leave out rollouts without such a figure, and
    have one page."""

    NEWEST = "newest"
    OLDEST = "oldest"
    LONGEST = "longest"
    """Most seconds in RUN, those of a rollout that is in it included."""
    SHORTEST = "shortest"
    BEST = "best"
    """Highest reward."""
    WORST = "worst"
    MOST_TURNS = "most_turns"
    FEWEST_TURNS = "fewest_turns"
    MOST_TOKENS = "most_tokens"
    """Most sampled tokens."""
    FEWEST_TOKENS = "fewest_tokens"


class RolloutQuery(RowQuery):
    sort: RolloutSort = RolloutSort.NEWEST
    count: bool = Field(False, description="Whether to count the rollouts that match.")

    @model_validator(mode="after")
    def _continues_the_newest(self) -> Self:
        if self.before is not None and self.sort is not RolloutSort.NEWEST:
            raise ValueError(f"sort={self.sort.value} has one page: leave out `before`")
        return self


class GroupQuery(RowQuery):
    """Query for groups. One rollout must meet all conditions on rollouts for its group to match."""

    outcome: list[GroupOutcome] = Field(default_factory=list)


class RolloutRow(WireModel):
    """A rollout in a list. Figures of its sampling are null while another service runs it."""

    rollout_id: str
    group_id: str
    task_id: str
    agent: str
    index: int
    run: str
    client: str | None = Field(None, description="Name of the submitter, or its training.")
    state: RolloutState
    attempt: int
    reward: float | None = None
    reward_components: dict[str, float] = Field(default_factory=dict)
    error: ErrorInfo | None = None
    finish_reason: FinishReason | None = None
    turns: int | None = None
    sampled_tokens: int | None = None
    segments: int | None = None
    policy_version: int | None = Field(
        None,
        description="Version that it counts for: the newest that it sampled with, or, if it "
        "sampled nothing, the service's when it ended.",
    )
    oldest_policy_version: int | None = None
    newest_policy_version: int | None = None
    staleness: int | None = Field(
        None, description="Policy versions by which its oldest token was behind when it ended."
    )
    timings: Timings = Timings()
    activity: Activity | None = Field(
        None,
        description="What it does now; null once it has ended, and while another service runs it.",
    )
    model_s: float | None = Field(None, description="Seconds of `run_s` in model calls.")
    tool_s: float | None = Field(None, description="Seconds of `run_s` in tool calls.")
    created_at: float = Field(description="Unix time in seconds.")
    ended_at: float | None = None
    has_content: bool = Field(description="Whether its text and tokens are available.")
    kept_for: KeptFor | None = Field(None, description="Why the shelf keeps its group.")
    excerpt: Excerpt | None = Field(
        None, description="Where `text` was first found.", exclude_if=lambda found: found is None
    )


class RolloutRows(WireModel):
    rollouts: list[RolloutRow] = Field(
        description="As sorted; by default newest first, siblings by index."
    )
    next: str | None = Field(None, description="`before` of the next page; null: this is the last.")
    notice: str = Field("", description="What the list may lack, and why.")
    matches: int | None = Field(None, description="Number of rollouts that match, if asked for.")


class GroupRow(WireModel):
    group_id: str
    run: str
    task_id: str
    agent: str
    client: str | None = Field(None, description="Name of the submitter, or its training.")
    n: int
    states: list[RolloutState | None] = Field(
        description="By index; null for a rollout that had not ended when its run did."
    )
    rewards: list[float | None] = Field(description="By index.")
    mean_reward: float | None = None
    outcome: GroupOutcome
    policy_versions: list[int] = Field(default_factory=list)
    blames: dict[Blame, int] = Field(default_factory=dict, description="Failed rollouts.")
    turns: int = Field(0, description="Sum over its ended rollouts.")
    sampled_tokens: int = Field(0, description="Sum over its ended rollouts.")
    created_at: float = Field(description="Unix time in seconds.")
    ended_at: float | None = Field(None, description="When its last rollout ended.")
    has_content: bool = Field(description="Whether some text and tokens are available.")
    kept_for: KeptFor | None = None


class GroupRows(WireModel):
    groups: list[GroupRow] = Field(description="Newest first.")
    next: str | None = Field(None, description="`before` of the next page; null: this is the last.")
    notice: str = Field("", description="What the list may lack, and why.")


# --- one rollout --------------------------------------------------------------------------------


class TextCall(WireModel):
    """A tool call. `output` is null if it was not made because the rollout ended first."""

    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    output: str | None = None
    is_error: bool = False
    started_at: float | None = Field(None, description="Unix time in seconds.")
    duration_s: float = 0.0
    pictures: list[str] = Field(
        default_factory=list, repr=False, exclude_if=lambda pictures: not pictures
    )


class TextTurn(WireModel):
    """One model call and the tool results that follow, for people.

    `raw` is all that was sampled; `reasoning`, `text` and `tool_calls` are parsed from it where the
    service knows the model's format.
    """

    segment: int
    start: int
    stop: int
    given: str | None = Field(
        None,
        description="Text that the model saw before this turn, where the previous turn's tool "
        "results and format error do not show it.",
    )
    raw: str
    reasoning: str = ""
    text: str
    tool_calls: list[TextCall] = Field(default_factory=list)
    format_error: str | None = None
    stop_reason: StopReason
    reward: float | None = Field(None, exclude_if=lambda reward: reward is None)
    prompt_tokens: int
    sampled_tokens: int
    cached_tokens: int
    oldest_policy_version: int | None = None
    newest_policy_version: int | None = None
    model_s: float
    times: EngineTimes | None = Field(None, exclude_if=lambda times: times is None)
    tool_s: float
    backend: str
    is_replayed: bool = Field(False, description="Whether it is another rollout's; see `replay`.")
    results_differ: bool = Field(
        False, description="Whether its calls, made again, had other results than those shown."
    )


class SegmentSize(WireModel):
    prompt_tokens: int
    response_tokens: int
    sampled_tokens: int


class Sibling(WireModel):
    rollout_id: str
    index: int
    state: RolloutState | None = Field(description="Null if it had not ended when its run did.")
    reward: float | None = None
    blame: Blame | None = None


class RolloutText(WireModel):
    """A rollout as a conversation: what it was asked, what it did, and the verdict."""

    rollout: RolloutRow
    group_size: int
    prompt: list[Message] = Field(description="Messages of the first prompt, the agent's included.")
    tools: list[dict[str, Any]] = Field(description="Schemas of the offered tools.")
    task: Task
    sampling: Sampling
    limits: Limits
    turns: list[TextTurn]
    segments: list[SegmentSize]
    resumed: list[Resumption] = Field(
        default_factory=list,
        description="Starts of the service after which it continued from its last whole turn.",
    )
    replay: Replay | None = Field(None, exclude_if=lambda value: value is None)
    report: dict[str, JsonValue] | None = Field(None, description="The evaluator's report.")
    siblings: list[Sibling] = Field(description="All rollouts of its group, by index.")
    notice: str = Field("", description="What is missing here, and why.")


class TokenSlice(WireModel):
    """A part of one segment, prompt included, in columns of the same length."""

    rollout_id: str
    segment: int
    segments: int
    start: int
    length: int = Field(description="Tokens of the whole segment.")
    prompt_tokens: int = Field(description="How many of them are the prompt's.")
    ids: list[int]
    texts: list[str] = Field(
        description=r"Bytes that form no whole character are written as \xNN; see `partial`."
    )
    partial: list[int] = Field(description="Positions in these columns of such texts.")
    logprobs: list[float | None] = Field(description="Null where nothing was sampled.")
    mask: list[int] = Field(description="1 where the policy sampled.")
    versions: list[int | None] = Field(description="Null where nothing was sampled.")
    notice: str = Field("", description="What is missing here, and why.")


# --- agents, training, events -------------------------------------------------------------------


class AgentInfo(WireModel):
    name: str
    description: str = Field(description="Docstring of the agent, or of its module.")
    source: str = Field(description="Import path, as `prorl serve --agent` takes it.")
    is_built_in: bool
    sandbox_stages: list[Stage]
    data_schema: dict[str, Any] | None = Field(
        None, description="JSON schema of a task's `data`; null if the agent declares none."
    )
    tools: list[dict[str, Any]] = Field(
        default_factory=list, description="Schemas of the tools that tasks may be offered."
    )


class Agents(WireModel):
    agents: list[AgentInfo]


class TaskSort(Choice):
    WORST = "worst"
    """Lowest success rate; tasks without one come first."""
    BEST = "best"
    MOST_FAILED = "most_failed"
    LEAST_INFORMATIVE = "least_informative"


class TaskQuery(WireModel):
    run: str | None = Field(None, description="Run of the tasks (default: the service's own).")
    agent: str | None = None
    task_id: str | None = Field(None, description="Only this task; `*` stands for any text.")
    sort: TaskSort = TaskSort.WORST
    limit: int = Field(100, ge=1, le=MAX_ROWS)


class TrendPoint(WireModel):
    policy_version: int
    mean_reward: float


class TaskRow(WireModel):
    """Ended rollouts of one task, over all its groups."""

    task_id: str
    agent: str
    groups: int
    rollouts: int
    failed: int
    mean_reward: float | None = None
    success_rate: float | None = Field(
        None, description="Share of rollouts with a reward whose reward is 1 or more."
    )
    informative_share: float | None = Field(
        None, description="Share of groups with rewards that are informative."
    )
    trend: list[TrendPoint] = Field(
        description="Mean rewards of groups by the newest policy version in each, oldest first."
    )
    last_ended_at: float


class TaskRows(WireModel):
    run: str
    tasks: list[TaskRow]
    matches: int = Field(description="Number of tasks that match.")
    notice: str = ""


EventKind = Literal["hello", "rollout", "group", "weights", "engine", "reload", "end"]


class Event(WireModel):
    """One event. Fields of `data` by kind:

    `hello`: `run`, `policy_version`. `rollout`: `rollout_id`, `group_id`, `state`, `attempt`, `at`;
    at its end also `reward`, `blame`, `policy_version`. `group` (accepted): `group_id`, `task_id`,
    `agent`, `n`, `at`. `weights`: `policy_version`, `at`. `engine`: `backend_id`, `state` (null:
    removed), `policy_version`, `at`. `reload`: events were missed, fetch everything shown again.
    `end`: the service stops.
    """

    id: str | None = None
    event: EventKind
    data: dict[str, JsonValue] = Field(default_factory=dict)
