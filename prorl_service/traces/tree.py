"""The spans of one ended rollout, as a tree of plain data.

`invoke_agent` holds the stage visits of all attempts; a stage holds the model and tool calls that
began in it, of the last attempt only, whose trajectory is the rollout's. Token ids and logprobs are
never included. Names that begin with `gen_ai.` are those of OpenTelemetry's conventions for
generative AI, which are in development: its Python package marks all of them as deprecated. Those
that begin with `prorl.` are our own. Pure: does not import OpenTelemetry.
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
    sampled_tokens,
)

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
class TracedRollout:
    """An ended rollout, with facts that its answer lacks."""

    rollout: Rollout
    group: Group
    model: str | None
    """The model's name; None if the process that ended the rollout never knew it."""
    noticed_at: float
    """Unix time when its end was in the journal."""


@dataclass(slots=True)
class SpanEvent:
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
    events: list[SpanEvent] = field(default_factory=list)
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


def tree(ended: TracedRollout, provider: Callable[[str], str]) -> Node:
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


def _end(ended: TracedRollout, visits: Sequence[Node]) -> float:
    """Returns the end of the last stage; a cancelled rollout may have waited after it."""
    if visits and ended.rollout.state is not RolloutState.CANCELLED:
        return visits[-1].end
    return max(ended.noticed_at, ended.rollout.created_at)


# --- the rollout and its stages -----------------------------------------------------------------


def _root(ended: TracedRollout, end: float) -> Node:
    rollout, group = ended.rollout, ended.group
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": rollout.agent,
        "gen_ai.conversation.id": rollout.rollout_id,
        "gen_ai.request.model": ended.model,
        "prorl.group_id": rollout.group_id,
        "prorl.task_id": rollout.task_id,
        "prorl.index": rollout.index,
        "prorl.attempt": rollout.attempt,
        "prorl.state": rollout.state.value,
        "prorl.reward": rollout.reward,
        "prorl.policy_version.min": rollout.oldest_policy_version,
        "prorl.policy_version.max": rollout.newest_policy_version,
        "prorl.image": group.task.image,
        "prorl.queue_s": rollout.timings.queue_s,
        "prorl.waited_s": rollout.timings.waited_s,
    }
    if (trajectory := rollout.trajectory) is not None:
        attributes |= {
            "prorl.finish_reason": trajectory.finish_reason.value,
            "prorl.turns": len(trajectory.turns),
            "prorl.sampled_tokens": sampled_tokens(trajectory.turns),
            "prorl.segments": len(trajectory.segments),
        }
    name = f"invoke_agent {rollout.agent}"
    return Node(name, rollout.created_at, end, _known(attributes))


def _stage(visit: StageTime, group: Group) -> Node:
    attributes: dict[str, Value | None] = {
        "prorl.attempt": visit.attempt,
        "prorl.queue_s": visit.queue_s,
        "prorl.waited_s": visit.waited_s,
        "prorl.image": group.task.image,
    }
    end = visit.started_at + visit.took_s
    name = "prorl." + visit.stage.value
    node = Node(name, visit.started_at, end, _known(attributes))
    if visit.retried is not None:
        _fail(node, visit.retried)
    return node


def _fail(node: Node, error: ErrorInfo) -> None:
    """Records the error; that of a cancelled rollout is a reason, not a failure."""
    message = shown(error.message, MAX_LINE)
    if node.attributes.get("prorl.state") != RolloutState.CANCELLED.value:
        node.problem = f"{error.blame.value}: {message}"
    node.attributes |= {"error.type": error.kind, "prorl.blame": error.blame.value}
    if error.hint:
        node.attributes["prorl.hint"] = shown(error.hint, MAX_LINE)


def _fail_stage(node: Node, visit: StageTime, error: ErrorInfo) -> None:
    if error.stage in (None, visit.stage):
        _fail(node, error)


def _scores(rollout: Rollout, at: float) -> Iterator[SpanEvent]:
    scores = {} if rollout.reward is None else {"reward": rollout.reward}
    scores |= rollout.reward_components
    for name, value in scores.items():
        attributes: dict[str, Value] = {
            "gen_ai.evaluation.name": shown(name, MAX_LINE),
            "gen_ai.evaluation.score.value": value,
        }
        yield SpanEvent("gen_ai.evaluation.result", at, attributes)


# --- calls --------------------------------------------------------------------------------------


def _add_calls(
    root: Node, ended: TracedRollout, trajectory: Trajectory, provider: Callable[[str], str]
) -> None:
    last = ended.rollout.stages[-1].attempt if ended.rollout.stages else None
    visits = [one for one in root.children if one.attributes["prorl.attempt"] == last]
    common = _request(ended.model, trajectory.sampling)
    cursor = next((one.start for one in visits if one.name.endswith(Stage.RUN)), root.start)
    for turn in trajectory.turns:
        chat = _chat(
            turn, trajectory, cursor, common | {"gen_ai.provider.name": provider(turn.backend)}
        )
        parent = next((one for one in reversed(visits) if one.start <= chat.start), root)
        if not turn.is_replayed:  # no model was called
            parent.children.append(chat)
        cursor = chat.end
        for call in turn.tool_calls:
            tool = _tool(call, cursor)
            parent.children.append(tool)
            cursor = tool.end


def _request(model: str | None, sampling: Sampling) -> dict[str, Value]:
    attributes: dict[str, Value | None] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": model,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k or None,
        "gen_ai.request.max_tokens": sampling.max_tokens_per_turn,
    }
    return _known(attributes)


def _chat(turn: Turn, trajectory: Trajectory, cursor: float, common: dict[str, Value]) -> Node:
    """Makes the node of a model call; `cursor` is its start if its record has none."""
    segment = trajectory.segments[turn.segment]
    start = cursor if turn.started_at is None else turn.started_at
    attributes: dict[str, Value | None] = {
        **common,
        "gen_ai.response.finish_reasons": [turn.finish_reason],
        "gen_ai.usage.input_tokens": len(segment.prompt_ids) + turn.start,
        "gen_ai.usage.output_tokens": turn.stop - turn.start,
        "gen_ai.usage.cache_read.input_tokens": turn.cached_tokens,
        "prorl.segment": turn.segment,
        "prorl.waited_s": turn.waited_s,
        **{f"prorl.engine.{phase}": seconds for phase, seconds in turn.times or ()},
        "prorl.format_error": True if turn.format_error is not None else None,
        "prorl.reward": turn.reward,
    }
    sampled_by = segment.policy_versions[turn.start : turn.stop]
    attributes["prorl.policy_version"] = max(sampled_by, default=None)
    attributes |= _address(turn.backend)
    model = common.get("gen_ai.request.model")
    name = f"chat {model}" if model else "chat"
    end = start + turn.waited_s + turn.model_s
    return Node(name, start, end, _known(attributes), is_request=True, turn=turn)


def _address(backend: str) -> dict[str, Value | None]:
    try:
        parts = urlsplit(f"//{backend}")
        return {"server.address": parts.hostname or backend, "server.port": parts.port}
    except ValueError:
        return {"server.address": backend}


def _tool(call: ToolCallRecord, cursor: float) -> Node:
    """Replaces unusual tool names, which the model wrote: names of spans must be few and plain."""
    name = call.name if _TOOL_NAME.fullmatch(call.name) else UNKNOWN_TOOL
    start = cursor if call.started_at is None else call.started_at
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
    }
    node = Node(f"execute_tool {name}", start, start + call.duration_s, attributes, call=call)
    if call.is_error:
        node.problem, attributes["error.type"] = "", TOOL_ERROR
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
