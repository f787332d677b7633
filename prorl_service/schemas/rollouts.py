"""Types that come back: rollouts, their states with the legal moves as data, and errors."""

import base64
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, JsonValue, model_validator

from prorl_service.schemas.arrays import Float32Array, Int32Array, RunLengthArray
from prorl_service.schemas.base import MAX_INT32, Choice, Id, WireModel
from prorl_service.schemas.pictures import id_of

NOT_SAMPLED = -1
"""Policy version of tokens the policy did not sample (template and tool output)."""


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
    RolloutState.INIT: _ENDS | {RolloutState.READY, RolloutState.QUEUED},
    RolloutState.READY: _ENDS | {RolloutState.RUNNING},
    RolloutState.RUNNING: _ENDS | {RolloutState.EVALUATING, RolloutState.QUEUED},
    RolloutState.EVALUATING: _ENDS | {RolloutState.DONE, RolloutState.QUEUED},
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
    fields: list[FieldProblem] = Field(default_factory=list)


class ErrorResponse(WireModel):
    error: ErrorInfo


class FinishReason(Choice):
    """Reason why the agent stopped; only `FINISHED` is its own choice."""

    FINISHED = "finished"
    MAX_TURNS = "max_turns"
    LENGTH = "length"
    TIMEOUT = "timeout"
    ERROR = "error"


StopReason = Literal["stop", "length", "abort"]
"""Reason why an engine stopped sampling one turn."""


class ToolCallRecord(WireModel):
    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    output: str
    is_error: bool = False
    duration_s: float = 0.0
    started_at: float | None = Field(None, description="Unix time in seconds.")
    pictures: list[str] = Field(
        default_factory=list,
        repr=False,
        exclude_if=lambda pictures: not pictures,
        description="Pictures behind the output that the policy sees: files in base64.",
    )


class EngineTimes(WireModel):
    """Seconds of one call by its engine's own clock: until it was begun, until its first token, and
    until its last."""

    queue_s: float = Field(ge=0)
    prefill_s: float = Field(ge=0)
    decode_s: float = Field(ge=0)


class Sampling(WireModel):
    """Sampling by the engine. Logprobs are those of the distribution after `temperature`.

    `top_p` < 1 or `top_k` > 0 bias importance ratios by the probability mass they cut off.
    """

    temperature: float = Field(1.0, ge=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, le=MAX_INT32, description="0 keeps the whole vocabulary.")
    max_tokens_per_turn: int | None = Field(None, ge=1)
    seed: int | None = Field(
        None, ge=0, le=MAX_INT32, description="Base seed; a rollout's index and turn are mixed in."
    )
    thinking: bool | None = Field(
        None, description="The chat template's `enable_thinking`; None leaves it to the template."
    )


LogprobsMode = Literal["processed", "unknown"]
"""Whether an engine was seen to give logprobs of the distribution that it samples from."""


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
    waited_s: float = Field(
        0.0, description="Seconds that the call waited for its engine, which `model_s` leaves out."
    )
    cached_tokens: int = 0
    times: EngineTimes | None = Field(
        None,
        exclude_if=lambda times: times is None,
        description="The part of `model_s` within the engine; absent if its answers do not tell.",
    )
    is_replayed: bool = Field(
        False,
        exclude_if=lambda value: not value,
        description="Whether it is another rollout's, with which this one began: nothing of it "
        "was sampled, its tokens are masked, and its calls were made again.",
    )
    results_differ: bool = Field(
        False,
        exclude_if=lambda value: not value,
        description="Whether the calls of a replayed turn had other results when they were made "
        "again. The policy saw the earlier ones.",
    )
    is_abandoned: bool = Field(
        False, description="Whether the agent's program asked again instead of going on from it."
    )
    reward: float | None = Field(
        None,
        exclude_if=lambda reward: reward is None,
        description="The part of the rollout's reward that was earned here; absent if its agent "
        "does not tell.",
    )
    backend: str
    logprobs_mode: LogprobsMode = Field(
        "processed", exclude_if=lambda mode: mode == "processed", description="That of the engine."
    )
    policy: str | None = Field(
        None,
        exclude_if=lambda policy: policy is None,
        description="The model behind an API that wrote it; absent if an engine sampled it.",
    )
    started_at: float | None = Field(None, description="Unix time in seconds.")


SegmentKind = Literal["main", "compaction", "subagent", "auxiliary"]
"""What a segment is: the agent's own conversation; a summary of it, or what goes on from one; the
conversation of a sub-agent; a title or the like."""


class Segment(WireModel):
    """One token chain. All arrays but `prompt_ids` have the length R of `response_ids`.

    prompt_ids: int32[P]. response_ids: int32[R], sampled and interposed tokens alike.
    loss_mask: 0/1[R], 1 where the policy sampled. logprobs: float32[R] in nats, 0.0 where masked.
    policy_versions: int32[R], `NOT_SAMPLED` where masked.
    """

    prompt_ids: Int32Array = Field(repr=False)
    response_ids: Int32Array = Field(repr=False)
    loss_mask: RunLengthArray = Field(repr=False)
    logprobs: Float32Array = Field(repr=False)
    policy_versions: RunLengthArray = Field(repr=False)
    kind: SegmentKind = "main"
    is_trained: bool = Field(True, description="Whether trainers learn from it.")

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        for name in ("loss_mask", "logprobs", "policy_versions"):
            if len(getattr(self, name)) != len(self.response_ids):
                raise ValueError(f"{name} must be as long as response_ids")
        return self


class Trajectory(WireModel):
    segments: list[Segment] = Field(repr=False)
    turns: list[Turn] = Field(repr=False)
    finish_reason: FinishReason
    sampling: Sampling
    logprobs_mode: LogprobsMode = Field(
        "processed",
        description="'processed': its engines were seen to give logprobs of the distribution that "
        "they sample from. 'unknown': not all were.",
    )
    policy: str | None = Field(
        None,
        exclude_if=lambda policy: policy is None,
        description="The model behind an API that wrote its turns. It gave text: the tokens are "
        "the service's own, without logprobs, and no segment is trained on. Absent if engines "
        "sampled the tokens.",
    )
    pictures: dict[int, str] = Field(
        default_factory=dict,
        repr=False,
        exclude_if=lambda pictures: not pictures,
        description="The pictures of prompts that segments show, as files in base64, keyed by the "
        "id of their tokens, which no vocabulary has. Those of tools are with the calls.",
    )

    @property
    def has_pictures(self) -> bool:
        calls = (call for turn in self.turns for call in turn.tool_calls)
        return bool(self.pictures) or any(call.pictures for call in calls)

    def contents(self) -> dict[int, bytes]:
        """Returns all pictures that segments show, keyed by the id of their tokens, which is
        computed again: another service may have sent them. Raises `ValueError`."""
        files = (base64.b64decode(one) for one in self.pictures.values())
        return {id_of(one): one for one in files} | contents_of(self.turns)


def contents_of(turns: Iterable[Turn]) -> dict[int, bytes]:
    """Returns the pictures that tools gave in these turns, keyed by the id of their tokens."""
    records = (call for turn in turns for call in turn.tool_calls)
    contents = [base64.b64decode(one) for record in records for one in record.pictures]
    return {id_of(one): one for one in contents}


def logprobs_mode_of(turns: Sequence[Turn]) -> LogprobsMode:
    """Returns the mode of a trajectory with these turns."""
    is_known = all(turn.logprobs_mode == "processed" for turn in turns if not turn.is_replayed)
    return "processed" if is_known else "unknown"


def sampled_tokens(turns: Sequence[Turn]) -> int:
    """Returns how many tokens a rollout with these turns has sampled itself."""
    return sum(turn.stop - turn.start for turn in turns if not turn.is_replayed)


class Figures(WireModel):
    """What a trajectory comes to in numbers, without its tokens; all zero if nothing was sampled.

    Counted where the trajectory is at hand, so that nobody has to read a whole one for a list.
    """

    finish_reason: FinishReason | None = None
    turns: int = 0
    sampled_tokens: int = 0
    segments: int = 0
    model_s: float = 0.0
    tool_s: float = 0.0

    @classmethod
    def of(cls, trajectory: Trajectory | None) -> Self:
        if trajectory is None:
            return cls()
        turns = trajectory.turns
        return cls(
            finish_reason=trajectory.finish_reason,
            turns=len(turns),
            sampled_tokens=sampled_tokens(turns),
            segments=len(trajectory.segments),
            model_s=sum(turn.model_s for turn in turns),
            tool_s=sum(call.duration_s for turn in turns for call in turn.tool_calls),
        )


class Timings(WireModel):
    """Seconds, summed over attempts. `queue_s` sums all waiting between stages; a stage not
    reached is 0.

    `waited_s` is the part of the stages' seconds that counts against no budget: waits for an
    engine, for new weights or for a scoring process, and calls that an engine failed.
    """

    queue_s: float = 0.0
    init_s: float = 0.0
    run_s: float = 0.0
    eval_s: float = 0.0
    waited_s: float = 0.0


class StageTime(WireModel):
    """One visit to a stage. `queue_s`: seconds waited before it; `waited_s`: as in `Timings`."""

    stage: Stage
    attempt: int
    started_at: float = Field(description="Unix time in seconds.")
    queue_s: float
    took_s: float
    waited_s: float = 0.0
    retried: ErrorInfo | None = Field(
        None,
        description="The failure after which the rollout was begun again.",
        exclude_if=lambda value: value is None,
    )


class Resumption(WireModel):
    """A start of the service after which a rollout continued instead of starting from scratch, or
    another attempt that may have repeated calls."""

    turn: int = Field(description="Number of its turns that were kept; 0: it started from scratch.")
    away_s: float = Field(description="Seconds between the last of them and the next.")
    repeated_calls: int = Field(
        0,
        description="Number of tool calls with effects outside the sandbox that may have been made "
        "before, too; for an agent with a loop of its own, of turns.",
        exclude_if=lambda value: not value,
    )


class Replay(WireModel):
    """Turns of another rollout that a rollout began with, as its group asked (`start`)."""

    rollout_id: Id | None = Field(None, description="The other one; null if it was not named.")
    turns: int
    differing: int = Field(
        0,
        description="Number of those whose calls had other results when they were made again.",
    )


class Rollout(WireModel):
    """One attempt at a task. A failed one has an `error`, no reward, and what was sampled."""

    rollout_id: Id
    group_id: Id
    task_id: Id
    agent: str
    index: int
    state: RolloutState
    attempt: int = Field(
        0,
        description="Number of attempts begun; there is another after a failure that a retry may "
        "mend, and after the service's process died.",
    )
    error: ErrorInfo | None = None
    reward: float | None = None
    reward_components: dict[str, float] = Field(default_factory=dict)
    oldest_policy_version: int | None = Field(None, description="Oldest of its tokens, at its end.")
    newest_policy_version: int | None = Field(None, description="Newest of its tokens, at its end.")
    timings: Timings = Timings()
    stages: list[StageTime] = Field(
        default_factory=list,
        description="Visits to stages that have ended, in order, of all attempts since the service "
        "was started.",
    )
    resumed: list[Resumption] = Field(
        default_factory=list,
        description="Starts of the service after which it continued from its last whole turn.",
    )
    replay: Replay | None = Field(None, exclude_if=lambda value: value is None)
    created_at: float = Field(description="Unix time in seconds.")
    figures: Figures | None = Field(
        None,
        description="Figures of the trajectory, once the rollout has ended.",
        exclude_if=lambda value: value is None,
    )
    result_id: Id | None = Field(
        None,
        description="Random identity of the attempt that ended it, once it has ended. Parts of "
        "results belong together only if theirs are equal.",
        exclude_if=lambda value: value is None,
    )
    # The content, which is large, comes last: it can be cut off and put on without being read.
    trajectory: Trajectory | None = Field(None, repr=False)
    report: dict[str, JsonValue] | None = Field(
        None,
        repr=False,
        description="Report for people, in the agent's own form. Set if the trajectory is.",
    )

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL_STATES


CONTENT = frozenset({"trajectory", "report"})
"""Fields of a rollout that its summary lacks."""


def content_start(result_id: str | None) -> bytes:
    """Returns the first bytes of that result's content as JSON: `result_id` is in both parts."""
    return f'{{"result_id":"{result_id}","trajectory":'.encode()


class Rollouts(WireModel):
    rollouts: list[Rollout]
