"""Every type that crosses the wire, and the rollout states with their legal moves, as data.

Imports nothing of ours but `arrays`, so plug-ins and third parties can depend on it alone. Unknown
keys are refused everywhere: a misspelt option is an error, never a silent default.
"""

import json
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from prorl_service.arrays import Float32Array, Int32Array, RunLengthArray

NOT_SAMPLED = -1
"""Policy version of tokens the policy did not sample (template and tool output)."""

ID = r"^[A-Za-z0-9][A-Za-z0-9_.:\-]{0,199}$"
Id = Annotated[str, Field(pattern=ID)]
GroupId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:\-]{0,189}$")]
"""Shorter, to leave room for the index that makes it a rollout's id."""

MAX_INT32 = 2**31 - 1
MAX_GROUP_SIZE = 4096
MAX_ROLLOUTS_PER_REQUEST = 16_384
MAX_LEASE_S = 7 * 86_400.0
MAX_IDS_PER_REQUEST = 65_536
MAX_MESSAGES = 10_000


def _encodable(text: str) -> str:
    """JSON can spell lone surrogates, which no tokenizer or file takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("holds a lone surrogate, which is not text") from error
    return text


def _encodable_json(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    _encodable(json.dumps(value, ensure_ascii=False))
    return value


Text = Annotated[str, AfterValidator(_encodable)]


class WireModel(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


# --- what a trainer submits ---------------------------------------------------------------------


class Message(WireModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: Text


class Task(WireModel):
    """One problem instance. `data` is the agent's own: answers, files, test names."""

    task_id: Id
    agent: str = Field(description="Name of an agent the service has registered.")
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    data: Annotated[dict[str, JsonValue], AfterValidator(_encodable_json)] = {}
    image: Text | None = Field(None, description="Sandbox image; None takes the service's default.")


class Sampling(WireModel):
    """How the engine samples. Logprobs are those of the distribution after `temperature`.

    `top_p` < 1 or `top_k` > 0 bias importance ratios by the probability mass they cut off.
    """

    temperature: float = Field(1.0, ge=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=MAX_INT32, description="0 keeps the whole vocabulary.")
    max_tokens_per_turn: int | None = Field(None, ge=1)
    seed: int | None = Field(
        None, ge=0, le=MAX_INT32, description="Per rollout: index and turn are mixed in."
    )
    thinking: bool | None = Field(
        None, description="The chat template's `enable_thinking`; None leaves it to the template."
    )


class Limits(WireModel):
    """Budgets of one rollout. Time in a queue is charged to none of them."""

    max_turns: int = Field(16, ge=1, le=10_000)
    max_response_tokens: int | None = Field(
        None, ge=1, description="Tokens after the prompt, tool output included."
    )
    init_timeout_s: float = Field(120, gt=0)
    run_timeout_s: float = Field(900, gt=0)
    eval_timeout_s: float = Field(300, gt=0)
    tool_timeout_s: float = Field(60, gt=0)


class Group(WireModel):
    """The `n` rollouts of one task. `group_id` makes the submission idempotent."""

    group_id: GroupId
    task: Task
    n: int = Field(1, ge=1, le=MAX_GROUP_SIZE)
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    priority: int = Field(0, ge=-1000, le=1000, description="What is higher is begun first.")
    client: Id | None = Field(None, description="Who submits: they take turns within a priority.")
    lease_s: float | None = Field(
        None,
        gt=0,
        le=MAX_LEASE_S,
        description="Cancelled when nobody asks for it for so long; None never is.",
    )

    def rollout_id(self, index: int) -> str:
        return f"{self.group_id}.{index}"

    def rollout_ids(self) -> list[str]:
        return [self.rollout_id(index) for index in range(self.n)]


class SubmitRequest(WireModel):
    groups: list[Group] = Field(min_length=1, max_length=MAX_ROLLOUTS_PER_REQUEST)

    @field_validator("groups")
    @classmethod
    def _can_be_accepted(cls, groups: list[Group]) -> list[Group]:
        if len({group.group_id for group in groups}) != len(groups):
            raise ValueError("every group needs a group_id of its own")
        if sum(group.n for group in groups) > MAX_ROLLOUTS_PER_REQUEST:
            raise ValueError(f"at most {MAX_ROLLOUTS_PER_REQUEST} rollouts in one request")
        return groups


class RolloutIds(WireModel):
    rollout_ids: list[Id] = Field(min_length=1, max_length=MAX_IDS_PER_REQUEST)


class GroupIds(WireModel):
    group_ids: list[GroupId] = Field(min_length=1, max_length=MAX_IDS_PER_REQUEST)


# --- states -------------------------------------------------------------------------------------


class RolloutState(StrEnum):
    QUEUED = "queued"
    INIT = "init"
    READY = "ready"
    RUNNING = "running"
    EVALUATING = "evaluating"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDS = frozenset({RolloutState.FAILED, RolloutState.CANCELLED})

LEGAL_MOVES: dict[RolloutState, frozenset[RolloutState]] = {
    RolloutState.QUEUED: _ENDS | {RolloutState.INIT},
    RolloutState.INIT: _ENDS | {RolloutState.READY},
    RolloutState.READY: _ENDS | {RolloutState.RUNNING},
    RolloutState.RUNNING: _ENDS | {RolloutState.EVALUATING},
    RolloutState.EVALUATING: _ENDS | {RolloutState.DONE},
    RolloutState.DONE: frozenset(),
    RolloutState.FAILED: frozenset(),
    RolloutState.CANCELLED: frozenset(),
}

TERMINAL_STATES = frozenset(state for state, moves in LEGAL_MOVES.items() if not moves)


class Stage(StrEnum):
    INIT = "init"
    RUN = "run"
    EVAL = "eval"


class Blame(StrEnum):
    TASK = "task"
    AGENT = "agent"
    SANDBOX = "sandbox"
    BACKEND = "backend"
    EVALUATOR = "evaluator"
    SERVICE = "service"


# --- what comes back ----------------------------------------------------------------------------


class FieldProblem(WireModel):
    field: str = Field(description="Path into the request, e.g. 'groups.0.limits.max_turns'.")
    message: str


class ErrorInfo(WireModel):
    kind: str
    blame: Blame
    message: str
    hint: str = Field("", description="What the user can do about it.")
    retryable: bool = False
    stage: Stage | None = None
    fields: list[FieldProblem] = []


class ErrorResponse(WireModel):
    error: ErrorInfo


class FinishReason(StrEnum):
    """Why the agent stopped. Only `FINISHED` is a stop of its own will."""

    FINISHED = "finished"
    MAX_TURNS = "max_turns"
    LENGTH = "length"
    TIMEOUT = "timeout"
    ERROR = "error"


StopReason = Literal["stop", "length", "abort"]
"""Why an engine stopped sampling one turn."""


class ToolCallRecord(WireModel):
    name: str
    arguments: dict[str, JsonValue] = {}
    output: str
    is_error: bool = False
    duration_s: float = 0.0


class Turn(WireModel):
    """One model call and the tool results that follow, for people and metrics.

    `start:stop` is where its sampled tokens lie in `segments[segment].response_ids`.
    """

    segment: int
    start: int
    stop: int
    text: str
    finish_reason: StopReason
    tool_calls: list[ToolCallRecord] = Field(default_factory=list)
    format_error: str | None = None
    model_s: float
    cached_tokens: int = 0
    backend: str


class Segment(WireModel):
    """One token chain. All arrays but `prompt_ids` have the length R of `response_ids`.

    prompt_ids: int32[P]. response_ids: int32[R], sampled and interposed tokens alike.
    loss_mask: 0/1[R], 1 where the policy sampled. logprobs: float32[R] in nats, 0.0 where masked.
    policy_versions: int32[R], `NOT_SAMPLED` where masked.
    """

    prompt_ids: Int32Array
    response_ids: Int32Array
    loss_mask: RunLengthArray
    logprobs: Float32Array
    policy_versions: RunLengthArray

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        for name in ("loss_mask", "logprobs", "policy_versions"):
            if len(getattr(self, name)) != len(self.response_ids):
                raise ValueError(f"{name} must be as long as response_ids")
        return self


class Trajectory(WireModel):
    segments: list[Segment]
    turns: list[Turn]
    finish_reason: FinishReason
    sampling: Sampling
    logprobs_mode: Literal["processed"] = "processed"


class Timings(WireModel):
    """Seconds. `queue_s` sums all waiting between stages; a stage not reached is 0."""

    queue_s: float = 0.0
    init_s: float = 0.0
    run_s: float = 0.0
    eval_s: float = 0.0


class Rollout(WireModel):
    """One attempt at a task. A failed one has an `error`, no reward, and what was sampled."""

    rollout_id: Id
    group_id: Id
    task_id: Id
    agent: str
    index: int
    state: RolloutState
    attempt: int = Field(0, description="How often it was begun: again after each restart.")
    error: ErrorInfo | None = None
    reward: float | None = None
    reward_components: dict[str, float] = {}
    oldest_policy_version: int | None = Field(None, description="Of what it sampled, at its end.")
    trajectory: Trajectory | None = None
    report: dict[str, JsonValue] | None = Field(
        None, description="For people, in the agent's own form. There if the trajectory is."
    )
    timings: Timings = Timings()
    created_at: float = Field(description="Unix time in seconds.")

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL_STATES


class Rollouts(WireModel):
    rollouts: list[Rollout]


class BackendState(StrEnum):
    HEALTHY = "healthy"
    UPDATING = "updating"
    DOWN = "down"


class BackendSpec(WireModel):
    """An inference engine to use. `tokenizer` is a directory or a name on the hub; it defaults to
    the model that the engine reports."""

    url: str = Field(pattern=r"^https?://[^/\s]+/?$")
    tokenizer: str | None = None
    lease_s: float | None = Field(
        None,
        gt=0,
        le=MAX_LEASE_S,
        description="Removed when nobody adds it again for so long; None never is.",
    )
    max_calls: int | None = Field(
        None, ge=1, description="Calls in flight at once; None: the service's own limit."
    )
    policy_version: int | None = Field(
        None, ge=0, le=MAX_INT32, description="Others update it: it serves with these weights only."
    )


class BackendStatus(WireModel):
    backend_id: str
    url: str
    model: str
    state: BackendState
    policy_version: int
    max_model_len: int
    in_flight: int = Field(description="Calls under way.")
    sessions: int = Field(0, description="Rollouts whose calls go there.")
    reason: str = ""


class Backends(WireModel):
    backends: list[BackendStatus]


class WeightsFromDirectory(WireModel):
    """Weights of `version` lie in `path` (safetensors), on a file system the engines can read."""

    path: str
    version: int = Field(ge=0, le=MAX_INT32)


class WeightsReport(WireModel):
    """`pending` backends were unreachable; they take the weights before they serve again."""

    version: int
    applied: list[str]
    pending: list[str]


class ServiceStatus(WireModel):
    version: str
    is_stopping: bool = Field(description="It begins nothing more.")
    failure: str | None = Field(None, description="Why `/health` says that it failed.")
    policy_version: int
    sandbox: str
    agents: list[str]
    rollouts: dict[RolloutState, int]
    queues: dict[str, int]
    workers: dict[Stage, int]
    backends: list[BackendStatus]
