"""Rollouts as ATIF 1.8 documents (Agent Trajectory Interchange Format), one for each segment.

Each document refers to the next by `continued_trajectory_ref`; a later one marks messages of the
conversation before it with `is_copied_context`. The format refuses unknown fields, so ours are in
its `extra`. Token ids appear once: a step has only the ids that it adds, and a segment's first
agent step also has those of the prompt.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from prorl_service import __version__
from prorl_service.exports.transcript import (
    ExportRecord,
    Said,
    Transcriber,
    Transcript,
    output_of,
)
from prorl_service.schemas import Rollout, Segment, ToolCallRecord
from prorl_service.tokens.reading import ReadMessage

Document = dict[str, Any]

VERSION = "ATIF-v1.8"
UNKNOWN_PROMPT = (
    "The text of the prompt is not known: its token ids are with the first step of the agent."
)
TASK_ALONE = "The prompt is the task's messages; what the agent added to them is not known."
UNCERTAIN = "What answered a turn is as recorded: it could not be read back from the tokens."
NOT_READ = "Replies are not read: tool calls are in the text of messages as well."


def documents(record: ExportRecord, transcriber: Transcriber) -> list[tuple[str, Document]]:
    """Returns the name and content of each file. A rollout that sampled nothing has one too."""
    rollout = record.rollout
    transcripts = transcriber.transcripts(record) or [Transcript(0, [])]
    names = [_name(rollout, transcript.segment) for transcript in transcripts]
    found = []
    for n, transcript in enumerate(transcripts):
        document = _document(rollout, transcript, is_read=transcriber.chat is not None)
        if n + 1 < len(transcripts):
            document["continued_trajectory_ref"] = f"{names[n + 1]}.json"
        found.append((f"{names[n]}.json", document))
    return found


def _name(rollout: Rollout, segment: int) -> str:
    return rollout.rollout_id if segment == 0 else f"{rollout.rollout_id}-segment-{segment}"


def _document(rollout: Rollout, transcript: Transcript, *, is_read: bool) -> Document:
    numbers = count(1)
    steps = [
        *_prompt_steps(transcript, numbers),
        *_turn_steps(rollout, transcript, numbers),
    ]
    if not steps:
        steps = [{"step_id": 1, "source": "system", "message": _outcome(rollout)}]
    agent = {"name": rollout.agent, "version": "unknown"}
    if rollout.trajectory is not None and rollout.trajectory.policy is not None:
        agent["model_name"] = rollout.trajectory.policy
    if transcript.tools:
        agent["tool_definitions"] = transcript.tools  # type: ignore[assignment]
    document: Document = {
        "schema_version": VERSION,
        "session_id": rollout.group_id,
        "trajectory_id": _name(rollout, transcript.segment),
        "agent": agent,
        "steps": steps,
        "final_metrics": _final_metrics(steps),
        "extra": _extra(rollout, transcript),
    }
    if notes := _notes(transcript, is_read=is_read):
        document["notes"] = notes
    return document


def _notes(transcript: Transcript, *, is_read: bool) -> str:
    notes = []
    if transcript.prompt is None:
        notes.append(UNKNOWN_PROMPT)
    if transcript.prompt_from == "task":
        notes.append(TASK_ALONE)
    if is_read and transcript.prompt is not None and not transcript.is_whole:
        notes.append(UNCERTAIN)
    if not is_read and transcript.said:
        notes.append(NOT_READ)
    return " ".join(notes)


def _prompt_steps(transcript: Transcript, numbers: Iterator[int]) -> Iterator[Document]:
    """Yields the prompt's messages. In a later segment all are marked as copied; in the first, only
    those of the assistant."""
    answering: list[Document] = []
    for message in transcript.prompt or ():
        is_assistant = message["role"] == "assistant"
        if message["role"] == "tool" and answering:
            _answer(answering[-1], message)
            continue
        step = _step(next(numbers), message)
        if transcript.segment or is_assistant:
            step["is_copied_context"] = True
        answering = [step] if is_assistant else []
        yield step


def _step(number: int, message: ReadMessage) -> Document:
    sources = {"system": "system", "assistant": "agent"}
    step: Document = {
        "step_id": number,
        "source": sources.get(message["role"], "user"),
        "message": _content(message["content"]),
    }
    if thought := message.get("reasoning_content"):
        step["reasoning_content"] = thought
    if calls := message.get("tool_calls"):
        step["tool_calls"] = [
            _call(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in calls
        ]
    return step


def _content(content: str | list[dict[str, Any]]) -> Any:
    """Returns a content with its pictures as URLs: the format has no other place within a file."""
    if isinstance(content, str):
        return content
    return [
        part if part["type"] == "text" else _picture(part["image_url"]["url"]) for part in content
    ]


def _picture(url: str) -> Document:
    media_type = url.removeprefix("data:").partition(";")[0]
    return {"type": "image", "source": {"media_type": media_type, "path": url}}


def _call(id_: str, name: str, arguments: Any) -> Document:
    return {"tool_call_id": id_, "function_name": name, "arguments": arguments}


def _answer(step: Document, message: ReadMessage) -> None:
    result = {"content": _content(message["content"])}
    if message.get("tool_call_id") in {call["tool_call_id"] for call in step.get("tool_calls", ())}:
        result["source_call_id"] = message["tool_call_id"]
    step.setdefault("observation", {"results": []})["results"].append(result)


def _turn_steps(
    rollout: Rollout, transcript: Transcript, numbers: Iterator[int]
) -> Iterator[Document]:
    for said in transcript.said:
        assert rollout.trajectory is not None
        segment = rollout.trajectory.segments[transcript.segment]
        step = _step(next(numbers), said.message)
        if not step.get("tool_calls") and said.turn.tool_calls:
            step["tool_calls"] = [
                _call(f"call-{step['step_id']}-{n}", call.name, call.arguments)
                for n, call in enumerate(said.turn.tool_calls)
            ]
        if results := _results(step, said.turn.tool_calls):
            step["observation"] = {"results": results}
        step["llm_call_count"] = 1
        step["metrics"] = _metrics(said, segment, is_first=said is transcript.said[0])
        if said.turn.format_error:
            step["extra"] = {"format_error": said.turn.format_error}
        others = []
        for message in said.answers:
            if message["role"] != "tool":
                others.append(message)
            elif not results:
                _answer(step, message)
        yield step
        for message in others:
            yield _step(next(numbers), message)


def _results(step: Document, records: Sequence[ToolCallRecord]) -> list[Document]:
    """Returns the whole output of each call, even if the policy never saw it."""
    return [
        {
            "source_call_id": call["tool_call_id"],
            "content": _content(output_of(record)),
            "extra": {"is_error": record.is_error, "duration_s": record.duration_s},
        }
        for call, record in zip(step.get("tool_calls", ()), records, strict=False)
    ]


def _metrics(said: Said, segment: Segment, *, is_first: bool) -> Document:
    turn = said.turn
    metrics: Document = {
        "prompt_tokens": len(segment.prompt_ids) + turn.start,
        "completion_tokens": turn.stop - turn.start,
        "cached_tokens": min(turn.cached_tokens, len(segment.prompt_ids) + turn.start),
        "extra": {
            "finish_reason": turn.finish_reason,
            "model_s": turn.model_s,
            **({} if turn.times is None else {"engine_times": turn.times.model_dump()}),
            "backend": turn.backend,
            **({} if turn.reward is None else {"reward": turn.reward}),
        },
    }
    if turn.policy is None:
        _add_tokens(metrics, said, segment, is_first=is_first)
    return metrics


def _add_tokens(metrics: Document, said: Said, segment: Segment, *, is_first: bool) -> None:
    place = slice(said.turn.start, said.turn.stop)
    metrics["completion_token_ids"] = segment.response_ids[place]
    metrics["logprobs"] = segment.logprobs[place]
    metrics["extra"]["policy_versions"] = segment.policy_versions[place]
    if is_first:
        metrics["prompt_token_ids"] = segment.prompt_ids
    if said.context_ids:
        metrics["extra"]["context_token_ids"] = said.context_ids


def _final_metrics(steps: Sequence[Document]) -> Document:
    own = [step["metrics"] for step in steps if "metrics" in step]
    sums = {
        f"total_{name}": sum(one[name] for one in own)
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
    }
    return {**sums, "total_steps": len(steps)}


def _extra(rollout: Rollout, transcript: Transcript) -> Document:
    """Returns the rollout without its trajectory, and how that was sampled."""
    extra = rollout.model_dump(mode="json", exclude={"trajectory"}, exclude_none=True)
    if rollout.trajectory is not None:
        extra["finish_reason"] = rollout.trajectory.finish_reason.value
        extra["sampling"] = rollout.trajectory.sampling.model_dump(mode="json", exclude_none=True)
        extra["logprobs_mode"] = rollout.trajectory.logprobs_mode
        extra["segments"] = len(rollout.trajectory.segments)
        if transcript.prompt is None and rollout.trajectory.pictures:
            extra["pictures"] = {str(id_): one for id_, one in rollout.trajectory.pictures.items()}
    extra["segment"] = transcript.segment
    extra["exported_by"] = f"prorl-service {__version__}"
    return extra


def _outcome(rollout: Rollout) -> str:
    if rollout.error is None:
        return f"The rollout is {rollout.state.value}; nothing was sampled."
    return f"The rollout failed, blame {rollout.error.blame.value}: {rollout.error.message}"
