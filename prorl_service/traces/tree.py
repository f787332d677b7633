"""The spans of one ended rollout, as a tree of plain data.

`invoke_agent` holds the stage visits of all attempts; a stage holds the model and tool calls that
began in it, of the last attempt only, whose trajectory is the rollout's. Token ids and logprobs are
never included. Pure: does not import OpenTelemetry.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from prorl_service.schemas import (
    ErrorInfo,
    Group,
    Rollout,
    RolloutState,
    Sampling,
    Stage,
    StageTime,
    ToolCallRecord,
    Trajectory,
    Turn,
)
from prorl_service.traces import conventions as names

Value = str | bool | int | float | list[str]

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")
UNKNOWN_TOOL = "unknown"
"""Tool name for calls whose name is not a plain identifier."""
TOOL_ERROR = "tool_error"
MAX_CONTENT = 16_384
"""Most characters of a message, call or result."""
MAX_LINE = 1_000
"""Most characters of an error's message."""

_ACTS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters and changes of text direction: a terminal or a page would obey them."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An ended rollout, with facts that its answer lacks."""

    rollout: Rollout
    group: Group
    model: str | None
    """The model's name; None if the process that ended the rollout never knew it."""
    noticed_at: float
    """Unix time when its end was in the journal."""


@dataclass(slots=True)
class Event:
    name: str
    at: float
    attributes: dict[str, Value]


@dataclass(slots=True)
class Node:
    """A span to be; its times are Unix time in seconds."""

    name: str
    start: float
    end: float
    attributes: dict[str, Value]
    is_request: bool = False
    """True for a call to another process."""
    problem: str | None = None
    """Description of its failure; None if it did not fail."""
    events: list[Event] = field(default_factory=list)
    children: list["Node"] = field(default_factory=list)
    turn: Turn | None = None
    """The turn of a model call."""
    call: ToolCallRecord | None = None
    """The record of a tool call."""

    def walk(self) -> Iterator["Node"]:
        """Yields the node and its descendants, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


def tree(ended: Ended, provider: Callable[[str], str]) -> Node:
    """Returns the root. `provider` maps a backend's id to its kind of engine."""
    rollout = ended.rollout
    visits = [_stage(one, ended.group) for one in rollout.stages]
    root = _root(ended, _end(ended, visits))
    root.children = visits
    if rollout.error is not None:
        _fail(root, rollout.error)
        if visits and rollout.state is RolloutState.FAILED:
            _fail_stage(visits[-1], rollout.stages[-1], rollout.error)
    if rollout.trajectory is not None:
        _add_calls(root, ended, rollout.trajectory, provider)
    root.events = list(_scores(rollout, root.end))
    everything = list(root.walk())  # clocks may jump while a rollout runs
    root.start = min(one.start for one in everything)
    root.end = max(one.end for one in everything)
    return root


def _end(ended: Ended, visits: Sequence[Node]) -> float:
    """Returns the end of the last stage; a cancelled rollout may have waited after it."""
    if visits and ended.rollout.state is not RolloutState.CANCELLED:
        return visits[-1].end
    return max(ended.noticed_at, ended.rollout.created_at)


# --- the rollout and its stages -----------------------------------------------------------------


def _root(ended: Ended, end: float) -> Node:
    rollout, group = ended.rollout, ended.group
    attributes: dict[str, Value | None] = {
        names.OPERATION: names.INVOKE_AGENT,
        names.AGENT: rollout.agent,
        names.CONVERSATION: rollout.rollout_id,
        names.REQUEST_MODEL: ended.model,
        names.GROUP_ID: rollout.group_id,
        names.TASK_ID: rollout.task_id,
        names.INDEX: rollout.index,
        names.ATTEMPT: rollout.attempt,
        names.STATE: rollout.state.value,
        names.REWARD: rollout.reward,
        names.VERSION_MIN: rollout.oldest_policy_version,
        names.VERSION_MAX: rollout.newest_policy_version,
        names.IMAGE: group.task.image,
        names.QUEUE_S: rollout.timings.queue_s,
        names.WAITED_S: rollout.timings.waited_s,
    }
    if (trajectory := rollout.trajectory) is not None:
        attributes |= {
            names.FINISH_REASON: trajectory.finish_reason.value,
            names.TURNS: len(trajectory.turns),
            names.SAMPLED_TOKENS: sum(turn.stop - turn.start for turn in trajectory.turns),
            names.SEGMENTS: len(trajectory.segments),
        }
    name = f"{names.INVOKE_AGENT} {rollout.agent}"
    return Node(name, rollout.created_at, end, _known(attributes))


def _stage(visit: StageTime, group: Group) -> Node:
    attributes: dict[str, Value | None] = {
        names.ATTEMPT: visit.attempt,
        names.QUEUE_S: visit.queue_s,
        names.WAITED_S: visit.waited_s,
        names.IMAGE: group.task.image,
    }
    end = visit.started_at + visit.took_s
    name = names.STAGE_PREFIX + visit.stage.value
    node = Node(name, visit.started_at, end, _known(attributes))
    if visit.retried is not None:
        _fail(node, visit.retried)
    return node


def _fail(node: Node, error: ErrorInfo) -> None:
    """Records the error; that of a cancelled rollout is a reason, not a failure."""
    message = shown(error.message, MAX_LINE)
    if node.attributes.get(names.STATE) != RolloutState.CANCELLED.value:
        node.problem = f"{error.blame.value}: {message}"
    node.attributes |= {names.ERROR_TYPE: error.kind, names.BLAME: error.blame.value}
    if error.hint:
        node.attributes[names.HINT] = shown(error.hint, MAX_LINE)


def _fail_stage(node: Node, visit: StageTime, error: ErrorInfo) -> None:
    if error.stage in (None, visit.stage):
        _fail(node, error)


def _scores(rollout: Rollout, at: float) -> Iterator[Event]:
    scores = {} if rollout.reward is None else {"reward": rollout.reward}
    scores |= rollout.reward_components
    for name, value in scores.items():
        attributes: dict[str, Value] = {
            names.EVALUATION_NAME: shown(name, MAX_LINE),
            names.SCORE: value,
        }
        yield Event(names.EVALUATION, at, attributes)


# --- calls --------------------------------------------------------------------------------------


def _add_calls(
    root: Node, ended: Ended, trajectory: Trajectory, provider: Callable[[str], str]
) -> None:
    last = ended.rollout.stages[-1].attempt if ended.rollout.stages else None
    visits = [one for one in root.children if one.attributes[names.ATTEMPT] == last]
    common = _request(ended.model, trajectory.sampling)
    cursor = next((one.start for one in visits if one.name.endswith(Stage.RUN)), root.start)
    for turn in trajectory.turns:
        chat = _chat(turn, trajectory, cursor, common | {names.PROVIDER: provider(turn.backend)})
        parent = next((one for one in reversed(visits) if one.start <= chat.start), root)
        parent.children.append(chat)
        cursor = chat.end
        for call in turn.tool_calls:
            tool = _tool(call, cursor)
            parent.children.append(tool)
            cursor = tool.end


def _request(model: str | None, sampling: Sampling) -> dict[str, Value]:
    attributes: dict[str, Value | None] = {
        names.OPERATION: names.CHAT,
        names.REQUEST_MODEL: model,
        names.TEMPERATURE: sampling.temperature,
        names.TOP_P: sampling.top_p,
        names.TOP_K: sampling.top_k or None,
        names.MAX_TOKENS: sampling.max_tokens_per_turn,
    }
    return _known(attributes)


def _chat(turn: Turn, trajectory: Trajectory, cursor: float, common: dict[str, Value]) -> Node:
    """Makes the node of a model call; `cursor` is its start if its record has none."""
    segment = trajectory.segments[turn.segment]
    start = cursor if turn.started_at is None else turn.started_at
    attributes: dict[str, Value | None] = {
        **common,
        names.FINISH_REASONS: [turn.finish_reason],
        names.INPUT_TOKENS: len(segment.prompt_ids) + turn.start,
        names.OUTPUT_TOKENS: turn.stop - turn.start,
        names.CACHED_TOKENS: turn.cached_tokens,
        names.SEGMENT: turn.segment,
        names.WAITED_S: turn.waited_s,
        names.FORMAT_ERROR: True if turn.format_error is not None else None,
    }
    sampled_by = segment.policy_versions[turn.start : turn.stop]
    attributes[names.POLICY_VERSION] = max(sampled_by, default=None)
    attributes |= _address(turn.backend)
    model = common.get(names.REQUEST_MODEL)
    name = f"{names.CHAT} {model}" if model else names.CHAT
    end = start + turn.waited_s + turn.model_s
    return Node(name, start, end, _known(attributes), is_request=True, turn=turn)


def _address(backend: str) -> dict[str, Value | None]:
    try:
        parts = urlsplit(f"//{backend}")
        return {names.SERVER_ADDRESS: parts.hostname or backend, names.SERVER_PORT: parts.port}
    except ValueError:
        return {names.SERVER_ADDRESS: backend}


def _tool(call: ToolCallRecord, cursor: float) -> Node:
    """Replaces unusual tool names, which the model wrote: names of spans must be few and plain."""
    name = call.name if _TOOL_NAME.fullmatch(call.name) else UNKNOWN_TOOL
    start = cursor if call.started_at is None else call.started_at
    attributes: dict[str, Value] = {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL_NAME: name,
        names.TOOL_TYPE: names.FUNCTION,
    }
    node = Node(
        f"{names.EXECUTE_TOOL} {name}", start, start + call.duration_s, attributes, call=call
    )
    if call.is_error:
        node.problem, attributes[names.ERROR_TYPE] = "", TOOL_ERROR
    return node


def _known(attributes: dict[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}


def shown(text: str, limit: int = MAX_CONTENT) -> str:
    """Returns the first `limit` characters, with control characters escaped, such as `\\x1b`.
    Markup stays as it is, since viewers of spans show text."""
    kept = text[:limit]
    left_out = len(text) - len(kept)
    clean = _ACTS.sub(lambda found: found[0].encode("unicode_escape").decode(), kept)
    return clean + (f"… [{left_out} characters left out]" if left_out else "")
